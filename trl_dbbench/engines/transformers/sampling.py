"""Choice of the next token from raw logits.

Greedy and sampled rows share a batch, and each sampled row has its own random numbers. The recorded
log-probabilities are the trained policy's: without top-p and top-k, as GRPO's trainer computes them for the
same token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from trl_dbbench.episode.types import Request

BLOCK_TOKENS = 256
"""Tokens per block. A draw picks a block, then a token in it, instead of summing over all tokens."""

TOP_P_CANDIDATES = 256
"""Number of most likely tokens that top-p tries before it sorts the whole vocabulary."""

SORTED_ROWS = 16
"""Most rows whose whole vocabularies are sorted at once, to bound memory."""


class TokenChooser:
    """Chooser of one turn's tokens, step by step, for the rows of a batch.

    A sampled row draws each token with one uniform number, through the inverse of the cumulative
    distribution. The numbers come from a generator seeded by the episode's seed and the turn.
    """

    def __init__(self, requests: Sequence[Request], device: torch.device):
        samplings = [request.sampling for request in requests]
        self._greedy = torch.tensor([s.greedy for s in samplings], device=device)  # (B,)
        self._temperature = torch.tensor([[s.temperature] for s in samplings], device=device)  # (B, 1)
        top_p = [[s.top_p] for s in samplings]
        self._top_p = torch.tensor(top_p, device=device, dtype=torch.float64)  # (B, 1)
        self._top_k = torch.tensor([[s.top_k] for s in samplings], device=device)  # (B, 1)
        self._restricted = ~self._greedy & ((self._top_p < 1) | (self._top_k > 0))[:, 0]  # (B,)
        steps = max(request.max_new_tokens for request in requests)
        # drawn on the CPU, so that a run gives the same numbers on every device
        uniforms = torch.stack([_uniforms(request, steps) for request in requests])
        self._uniforms = uniforms.to(device)  # (B, steps)
        self._step = 0
        self._find()

    def select(self, rows: torch.Tensor) -> None:
        """Continue with these rows, in this order."""
        for name in ("_greedy", "_temperature", "_top_p", "_top_k", "_restricted", "_uniforms"):
            setattr(self, name, getattr(self, name)[rows])
        self._find()

    def _find(self) -> None:
        # once for all steps: learning how many there are waits for the GPU
        self._greedy_rows = self._greedy.nonzero()[:, 0]
        self._restricted_rows = self._restricted.nonzero()[:, 0]

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the chosen ids and their log softmax(logits / temperature), both (B,); logits are (B, V)."""
        scaled = logits.float() / self._temperature  # (B, V)
        # argmax takes many times as long as the maximum alone, so it is computed for greedy rows only
        most = scaled.amax(dim=-1, keepdim=True)  # (B, 1)
        weights = scaled.softmax(dim=-1)  # (B, V)
        # log-probability of the most likely token: minus the log of the sum of exp(scaled - most)
        top = weights.amax(dim=-1, keepdim=True).log_()  # (B, 1)
        if len(self._greedy_rows) == len(scaled):
            chosen = scaled.argmax(dim=-1, keepdim=True)  # (B, 1)
        else:
            # a rank whose rows are done stays in step with the others, and nobody reads its tokens
            step = min(self._step, self._uniforms.shape[1] - 1)
            uniform = self._uniforms[:, step, None]  # (B, 1)
            padded = F.pad(weights, (0, -weights.shape[1] % BLOCK_TOKENS))
            blocks = padded.unflatten(1, (-1, BLOCK_TOKENS))  # (B, V / BLOCK_TOKENS, BLOCK_TOKENS)
            masses = blocks.sum(dim=-1)  # (B, V / BLOCK_TOKENS)
            chosen = _draw(blocks, masses, uniform, weights.shape[1])
            rows = self._greedy_rows
            chosen[rows] = scaled[rows].argmax(dim=-1, keepdim=True)
            rows = self._restricted_rows
            if len(rows):
                chosen[rows] = _draw_restricted(
                    weights[rows], self._top_p[rows], self._top_k[rows], uniform[rows]
                )
        self._step += 1
        logprobs = scaled.gather(1, chosen) - most + top
        return chosen[:, 0], logprobs[:, 0]


def _uniforms(request: Request, steps: int) -> torch.Tensor:
    """Return `steps` numbers in [0, 1) of the request's own stream; more steps only extend it."""
    generator = torch.Generator().manual_seed(request.seed)
    return torch.rand(steps, generator=generator, dtype=torch.float64)


def _draw(blocks: torch.Tensor, masses: torch.Tensor, uniform: torch.Tensor, size: int) -> torch.Tensor:
    """Draw a token for each row, (B, 1), out of `size` tokens: first its block, then the token in it."""
    place, rest = _inverse_cdf(masses, uniform)
    block = blocks.gather(1, place[:, :, None].expand(-1, -1, BLOCK_TOKENS))[:, 0]  # (B, BLOCK_TOKENS)
    within, _ = _inverse_cdf(block, rest)
    return (place * BLOCK_TOKENS + within).clamp_(max=size - 1)  # with NaN, it is beyond the last one


def _inverse_cdf(masses: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where a uniform number falls among `masses`, never on a 0, and what share of that mass is before
    it; both (B, 1)."""
    cumulative = _summed(masses.double())
    target = uniform * cumulative[:, -1:]
    # right=True: the first whose cumulative mass exceeds the target
    place = torch.searchsorted(cumulative, target, right=True).clamp_(max=masses.shape[1] - 1)
    mass = masses.gather(1, place).double()
    before = cumulative.gather(1, place) - mass
    return place, ((target - before) / mass).clamp_(0.0, 1.0 - 1e-12)


def _summed(masses: torch.Tensor) -> torch.Tensor:
    """Return cumulative sums over the columns. Under `full_determinism` they are computed on the CPU, since a
    GPU's vary in their rounding and are refused."""
    place = "cpu" if torch.are_deterministic_algorithms_enabled() else masses.device
    return masses.to(place).cumsum(dim=-1).to(masses.device)


def _draw_restricted(
    weights: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """Draw from the `top_k` most likely tokens (0: all), and of these from the fewest that reach `top_p`."""
    size = weights.shape[1]
    count = min(size, max(TOP_P_CANDIDATES, int(top_k.max())))
    candidates, order = weights.topk(count, dim=-1)  # (B, count), descending
    reached = candidates.double().sum(dim=-1, keepdim=True) >= top_p
    if (reached | (top_k > 0)).all():
        return _draw_among(candidates, order, top_p, top_k, uniform)
    parts = zip(*(each.split(SORTED_ROWS) for each in (weights, top_p, top_k, uniform)), strict=True)
    return torch.cat([_draw_among(*some.sort(dim=-1, descending=True), *rest) for some, *rest in parts])


def _draw_among(
    candidates: torch.Tensor,
    order: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """Draw as `_draw_restricted` does, from the most likely tokens `order` with the weights `candidates`."""
    rank = torch.arange(candidates.shape[1], device=candidates.device)
    masses = candidates.double().masked_fill((top_k > 0) & (rank >= top_k), 0.0)
    before = _summed(masses) - masses  # mass of the more likely tokens
    # as in transformers and vLLM: top_p is a share of what top_k leaves
    whole = torch.where(top_k > 0, masses.sum(dim=-1, keepdim=True), 1.0)
    out = before >= top_p * whole
    out[:, 0] = False  # the most likely token always stays
    place, _ = _inverse_cdf(masses.masked_fill(out, 0.0), uniform)
    return order.gather(1, place)
