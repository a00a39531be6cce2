"""The choice of the next token, from raw logits.

Greedy and sampled rows share a batch, each sampled row has random numbers of its own, and the recorded
log-probabilities are those of the policy that is trained: without top-p and top-k, as GRPO's trainer
computes them for the same token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from trl_dbbench.episode.types import Request

BLOCK_TOKENS = 256
"""Tokens in a block. A draw chooses a block, then a token in it, which saves adding up all tokens."""

TOP_P_CANDIDATES = 256
"""The most likely tokens that top-p is tried on, before the whole vocabulary is sorted for it."""

SORTED_ROWS = 16
"""Rows whose whole vocabularies are sorted together: that takes memory for each of them."""


class TokenChooser:
    """Chooses the tokens of one turn, step by step, for the rows of a batch.

    A sampled row's token comes from one uniform number, by the inverse of the cumulative distribution; the
    numbers are from a generator seeded by the episode's seed and the turn.
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
        """Go on with these rows, in this order."""
        for name in ("_greedy", "_temperature", "_top_p", "_top_k", "_restricted", "_uniforms"):
            setattr(self, name, getattr(self, name)[rows])
        self._find()

    def _find(self) -> None:
        # once for all tokens: a GPU has to be waited for to learn how many there are
        self._greedy_rows = self._greedy.nonzero()[:, 0]
        self._restricted_rows = self._restricted.nonzero()[:, 0]

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The chosen ids and their log softmax(logits / temperature), each (B,), from logits of (B, V)."""
        scaled = logits.float() / self._temperature  # (B, V)
        # finding the most likely token takes many times as long as its logit, so only where it is needed
        most = scaled.amax(dim=-1, keepdim=True)  # (B, 1)
        weights = scaled.softmax(dim=-1)  # (B, V)
        # of the most likely token: minus the logarithm of the sum of exp(scaled - most)
        top = weights.amax(dim=-1, keepdim=True).log_()  # (B, 1)
        if len(self._greedy_rows) == len(scaled):
            chosen = scaled.argmax(dim=-1, keepdim=True)  # (B, 1)
        else:
            # a rank whose rows are done goes along with the others, and nobody reads its tokens
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
    """`steps` numbers in [0, 1) of the request's own stream; longer streams begin with the shorter ones."""
    generator = torch.Generator().manual_seed(request.seed)
    return torch.rand(steps, generator=generator, dtype=torch.float64)


def _draw(blocks: torch.Tensor, masses: torch.Tensor, uniform: torch.Tensor, size: int) -> torch.Tensor:
    """A token of each row, (B, 1), of `size`: first the block in which the draw falls, then the token."""
    place, rest = _inverse_cdf(masses, uniform)
    block = blocks.gather(1, place[:, :, None].expand(-1, -1, BLOCK_TOKENS))[:, 0]  # (B, BLOCK_TOKENS)
    within, _ = _inverse_cdf(block, rest)
    return (place * BLOCK_TOKENS + within).clamp_(max=size - 1)  # of NaN it is beyond the last one


def _inverse_cdf(masses: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a uniform number falls among `masses`, never on a 0, and how far into that one; both (B, 1)."""
    cumulative = _summed(masses.double())
    target = uniform * cumulative[:, -1:]
    # right=True: the first one whose cumulative mass exceeds the target
    place = torch.searchsorted(cumulative, target, right=True).clamp_(max=masses.shape[1] - 1)
    mass = masses.gather(1, place).double()
    before = cumulative.gather(1, place) - mass
    return place, ((target - before) / mass).clamp_(0.0, 1.0 - 1e-12)


def _summed(masses: torch.Tensor) -> torch.Tensor:
    """Return sums over all columns up to each. A GPU's vary in their rounding, and `full_determinism` refuses
    them."""
    place = "cpu" if torch.are_deterministic_algorithms_enabled() else masses.device
    return masses.to(place).cumsum(dim=-1).to(masses.device)


def _draw_restricted(
    weights: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """As `_draw`, among the `top_k` most likely (0: all), and of these the fewest that reach `top_p`."""
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
    """Do what `_draw_restricted` says, given the most likely tokens, `order`, and their weights."""
    rank = torch.arange(candidates.shape[1], device=candidates.device)
    masses = candidates.double().masked_fill((top_k > 0) & (rank >= top_k), 0.0)
    before = _summed(masses) - masses  # mass of the more likely tokens
    # as transformers and vLLM: top_p is a share of what top_k leaves
    whole = torch.where(top_k > 0, masses.sum(dim=-1, keepdim=True), 1.0)
    out = before >= top_p * whole
    out[:, 0] = False  # the most likely token always stays
    place, _ = _inverse_cdf(masses.masked_fill(out, 0.0), uniform)
    return order.gather(1, place)
