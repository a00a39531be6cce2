"""Training forwards of episodes whose template drops earlier thoughts: the tree of an episode's tokens
against one forward a sequence.

    python benchmarks/token_trees.py MODEL [--episodes 4] [--turns 6] [--rounds 3]

MODEL is a folder or hub id, such as SmolLM2-135M-Instruct. A turn is a thought, which no later turn reads,
and a statement; the next one reads the prompt, all earlier statements and what came back. Prints the seconds
of a forward and backward pass, and how far the gradients of the two are apart.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from trl_dbbench.engines.shared_prompts import SharedPrompts, Tokens
from trl_dbbench.engines.token_trees import lay_out_trees, score_sequences
from trl_dbbench.episode.token_tree import TokenTree

PROMPT, THOUGHT, STATEMENT, OBSERVATION = 300, 60, 40, 30
"""Tokens of each."""


def episode(rng: random.Random, turns: int, vocabulary: int) -> tuple[list[int], list[int]]:
    """Ids and the place before each; the prompt's first."""

    def ids(count: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(count)]

    prompt = ids(PROMPT)
    tree, context = TokenTree(prompt), prompt
    for _ in range(turns):
        known, place = tree.find(context)
        place = tree.add(context[known:], place)
        thought, said = ids(THOUGHT), ids(STATEMENT)
        tree.add(said, tree.add(thought, place))
        context = [*context, *said, *ids(OBSERVATION)]
    return tree.ids, tree.follows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).to(accelerator.device)
    add_fused_lm_head(model, temperature=1.0, outputs=("log_probs", "entropy"))
    rng = random.Random(0)
    made = [episode(rng, given.turns, model.config.vocab_size) for _ in range(given.episodes)]
    input_ids = torch.tensor([ids for ids, _ in made], device=accelerator.device)
    mask = torch.ones_like(input_ids)
    follows = torch.tensor([places[PROMPT:] for _, places in made], device=accelerator.device) - PROMPT
    sharing, tokens = SharedPrompts(accelerator), Tokens(input_ids, mask, follows.shape[1], follows)

    def usual(ids: torch.Tensor, mask: torch.Tensor, completion: int, _: int | None):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
            shift_labels=torch.nn.functional.pad(ids, (0, 1))[:, 1:],
            fused_lm_head=True,
        )
        return output.log_probs[:, -completion - 1 : -1], None

    def sequences() -> torch.Tensor:
        return score_sequences(usual, tokens)[0]

    def tree() -> torch.Tensor:
        layout = lay_out_trees(tokens, range(len(input_ids)))
        return sharing.forward(model, [layout], (len(input_ids), follows.shape[1]), False)[0]

    seconds: dict[str, list[float]] = {"one forward a sequence": [], "tree": []}
    gradients = {}
    for _ in range(given.rounds + 1):  # the first one warms up
        for name, score in (("one forward a sequence", sequences), ("tree", tree)):
            model.zero_grad()
            started = time.perf_counter()
            logps = score()
            weights = torch.linspace(-1, 1, logps.numel(), device=logps.device).view_as(logps)
            (logps * weights).sum().backward()
            if accelerator.device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - started)
            gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    one, other = gradients.values()
    for name, measured in seconds.items():
        print(f"{name:<24}{statistics.median(measured[1:]):8.2f} s")
    ratios = [a / b for a, b in list(zip(*seconds.values(), strict=True))[1:]]
    print(f"the tree is {statistics.median(ratios):.2f} times as fast")
    apart = float((one - other).norm() / one.norm())
    print(f"{input_ids.numel():,} tokens in the trees; gradients are {apart:.1e} apart")


if __name__ == "__main__":
    main()
