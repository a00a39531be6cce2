"""Rollouts against stock TRL: the same model, prompts, turns and tokens, so the work is equal.

    python benchmarks/rollout.py [--sizes 1m 40m] [--steps 3] [--rounds 1] [--quick] [--json FILE]

Four prompts of 700 tokens with eight samples each, three turns of 60 tokens that end in a tool call,
observations of 40 tokens, and a greedy run of each prompt. The model computes as any other; then its next
token is set by a script, since random weights call no tools. Stock is `trl.GRPOTrainer` with
`environment_factory` and, for the greedy evaluation, a second pass over the prompts. Both run the same SQL on
the same kind of database.

Prints the seconds of sampling with greedy evaluation, what the greedy rows cost, where a whole training step
goes, the peak memory (of the GPU where there is one, else of the process), and the ratios. Each runs in a
process of its own; in several rounds they alternate, and the ratios are medians with quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import logging
import os
import platform
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import transformers
import trl
from tokenizers import AddedToken
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template
from worlds.tiny_model import make_tiny_model

from trl_dbbench import DBBenchGRPOConfig, DBBenchGRPOTrainer, open_database, to_dataset
from trl_dbbench.database import Database, Sandbox
from trl_dbbench.engines.transformers.engine import TransformersEngine
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.protocol import ToolsProtocol
from trl_dbbench.tasks import Column, Gold, Table, Task
from trl_dbbench.utils.cpu import spare_page_faults

PROMPTS, SAMPLES, TURNS = 4, 8, 3
PROMPT_TOKENS, TURN_TOKENS, OBSERVATION_TOKENS = 700, 60, 40
SHAPES = {
    "1m": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 2_000},
    "40m": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "vocab_size": 32_000},
}
FILLER = " a"  # one token
CERTAIN = 1e4  # a logit
SYSTEM_PROMPT = "Work on the database."
LENGTH = TURNS * TURN_TOKENS + (TURNS - 1) * OBSERVATION_TOKENS


def qwen2(shape: dict[str, int], **settings: Any) -> Qwen2Config:
    return Qwen2Config(
        **shape,
        intermediate_size=4 * shape["hidden_size"],
        num_key_value_heads=shape["num_attention_heads"],
        **settings,
    )


class Script:
    """A hook that makes the script's next token all but certain, of what the model has computed.

    A hook, since a `forward` of its own would hide what Qwen2's accepts: generation asks for the last token's
    logits only where `logits_to_keep` is among its parameters.

    Args:
        next_id: (V,), after each id the next one.
    """

    def __init__(self, next_id: torch.Tensor):
        self.next_id = next_id

    def __call__(self, model: Qwen2ForCausalLM, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        input_ids, logits = kwargs.get("input_ids"), getattr(output, "logits", None)
        if not torch.is_grad_enabled() and logits is not None and input_ids is not None:
            next_id = self.next_id.to(input_ids.device)[input_ids[:, -1:]]  # (B, 1)
            logits[:, -1].scatter_(1, next_id, CERTAIN)


def turn_pieces() -> list[str]:
    """The turn's tokens but for the end token."""
    call = '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT note FROM notes WHERE \''
    words = [f" w{number:02}" for number in range(TURN_TOKENS - 3)]
    return [call, *words, "' <> ''\"}}\n</tool_call>"]


def scripted(tokenizer: PreTrainedTokenizerBase, shape: dict[str, int]) -> Qwen2ForCausalLM:
    """A model that says the same turn again and again: a tool call of TURN_TOKENS tokens, all different."""
    pieces = turn_pieces()
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    ids = [*tokenizer.convert_tokens_to_ids(pieces), tokenizer.eos_token_id]
    assert len(ids) == TURN_TOKENS
    before = tokenizer("<|im_start|>assistant\n")["input_ids"][-1]
    next_id = torch.full((shape["vocab_size"],), tokenizer.eos_token_id)
    next_id[[before, *ids[:-1]]] = torch.tensor(ids)
    config = qwen2(
        shape,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    model.register_forward_hook(Script(next_id), with_kwargs=True)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def made(size: str, folder: Path) -> tuple[PreTrainedTokenizerBase, torch.nn.Module]:
    """A scripted model of one of `SHAPES`, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(
        make_tiny_model(
            folder / "tokenizer",
            [qwen3_chat_template, json.dumps(ToolsProtocol.tools), FILLER * 9],
            max_position_embeddings=4096,
        )
    )
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer, scripted(tokenizer, SHAPES[size])


def tasks_for(
    tokenizer: PreTrainedTokenizerBase, prompt_tokens: Callable[[Task], int], prompts: int
) -> list[Task]:
    """Tasks whose prompts have PROMPT_TOKENS tokens, and whose one cell makes observations of
    OBSERVATION_TOKENS."""
    chat = ChatFormat(tokenizer, ToolsProtocol())

    def observation_tokens(note: str) -> int:
        return len(chat.observation_ids(str([(note,)]), end=tokenizer.eos_token_id))

    note = filled(observation_tokens, OBSERVATION_TOKENS)
    table = Table("notes", (Column("note"),), ((note,),))

    def task(number: int, filler: str) -> Task:
        return Task(f"task-{number}", f"{number}{filler}", (table,), "SELECT", Gold(answer=((note,),)))

    return [
        task(number, filled(lambda text, n=number: prompt_tokens(task(n, text)), PROMPT_TOKENS))
        for number in range(prompts)
    ]


def filled(count: Callable[[str], int], wanted: int) -> str:
    """A text with so much filler that `count` of it is `wanted`."""
    text = FILLER
    while (
        missing := wanted - count(text)
    ) > 0:  # at the edges a filler may become one token with its neighbour
        text += FILLER * missing
    assert count(text) == wanted, (count(text), wanted)
    return text


# --- clocks -----------------------------------------------------------------------------------------

SECONDS: dict[str, float] = defaultdict(float)


def timed(owner: Any, name: str, part: str) -> None:
    """Adds the time that a method takes to SECONDS[part]."""
    method = getattr(owner, name)

    @functools.wraps(method)  # TRL finds tools by their names
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        clock = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            SECONDS[part] += time.perf_counter() - clock

    setattr(owner, name, wrapper)


class Steps(TrainerCallback):
    """What SECONDS says of each step but the first, which warms up."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        SECONDS.clear()
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step > 1:
            parts = ("rollout", "rewards", "log-probabilities", "backward")
            step = time.perf_counter() - self._start
            rest = step - sum(SECONDS[part] for part in parts)
            self.steps.append({**SECONDS, "rest": rest, "step": step})


# --- stock TRL --------------------------------------------------------------------------------------


class DatabaseEnvironment:
    """What TRL asks of an environment: `reset`, and methods that are the tools."""

    database: Database
    tasks: list[Task]

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None

    def reset(self, task: str, **kwargs: Any) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
        self._sandbox = self.database.sandbox(Task.from_json(task))

    def execute_sql(self, query: str) -> str:
        """Runs one SQL statement on the MySQL database and returns its rows or its error.

        Args:
            query: The SQL statement.
        """
        assert self._sandbox is not None
        return ToolsProtocol().observe(self._sandbox.execute(query))


class GreedyPass(TrainerCallback):
    """A greedy evaluation before each update: the prompts once more, without sampling."""

    trainer: GRPOTrainer

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        trainer.model.eval()
        trainer.generation_config.do_sample = False
        trainer._generate_and_score_completions([dict(row) for row in trainer.train_dataset])
        trainer.generation_config.do_sample = True
        trainer.model.train()


def stock(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    database: Database,
    prompts: int = PROMPTS,
    **options: Any,
) -> GRPOTrainer:
    def prompt_tokens(task: Task) -> int:
        ids = tokenizer.apply_chat_template(
            ToolsProtocol().messages(task, SYSTEM_PROMPT),
            tools=[DatabaseEnvironment().execute_sql],
            add_generation_prompt=True,
            return_dict=True,
        )["input_ids"]
        return len(ids)

    DatabaseEnvironment.database = database
    greedy = GreedyPass()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[reward],
        args=GRPOConfig(**options, max_completion_length=LENGTH, max_tool_calling_iterations=TURNS - 1),
        train_dataset=to_dataset(
            tasks_for(tokenizer, prompt_tokens, prompts), ToolsProtocol(), SYSTEM_PROMPT
        ),
        processing_class=tokenizer,
        environment_factory=DatabaseEnvironment,
        callbacks=[greedy],
    )
    greedy.trainer = trainer
    timed(DatabaseEnvironment, "reset", "database")
    timed(DatabaseEnvironment, "execute_sql", "database")
    return trainer


# --- ours -------------------------------------------------------------------------------------------


def ours(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    database: Database,
    prompts: int = PROMPTS,
    **options: Any,
) -> GRPOTrainer:
    chat = ChatFormat(tokenizer, ToolsProtocol())

    def prompt_tokens(task: Task) -> int:
        return len(chat.prompt_ids(ToolsProtocol().messages(task, SYSTEM_PROMPT)))

    trainer = DBBenchGRPOTrainer(
        model=model,
        reward_funcs=[reward],
        args=DBBenchGRPOConfig(
            **options,
            protocol="tools",
            max_turns=TURNS,
            max_turn_tokens=TURN_TOKENS,
            max_completion_length=LENGTH + OBSERVATION_TOKENS,
        ),
        train_dataset=to_dataset(
            tasks_for(tokenizer, prompt_tokens, prompts), ToolsProtocol(), SYSTEM_PROMPT
        ),
        processing_class=tokenizer,
        database=database,
    )
    # what the model waits for between two batches: parsing, SQL and rendering that no generation hides
    timed(TransformersEngine, "_next_batch", "database")
    return trainer


def reward(completions: list, **kwargs: Any) -> list[float]:
    return [float(number % 2) for number in range(len(completions))]


# --- the comparison ---------------------------------------------------------------------------------


def measure(
    make: Callable[..., GRPOTrainer],
    size: str,
    steps: int,
    spec: str,
    *,
    model_of: Callable[[str, Path], tuple[PreTrainedTokenizerBase, torch.nn.Module]] = made,
    prompts: int = PROMPTS,
    **more: Any,
) -> dict[str, float]:
    """Median seconds of a training step and of its parts; `rollout` is sampling with greedy evaluation.
    `memory` is the peak, in MB."""
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    spare_page_faults(torch.device("cpu"))  # stock TRL is to gain from it, too
    with tempfile.TemporaryDirectory() as folder, open_database(spec) as database:
        tokenizer, model = model_of(size, Path(folder))
        clock = Steps()
        trainer = make(
            model,
            tokenizer,
            database,
            prompts,
            output_dir=str(Path(folder) / "run"),
            max_steps=steps + 1,
            num_generations=SAMPLES,
            num_generations_eval=1,
            per_device_train_batch_size=prompts * SAMPLES,
            learning_rate=1e-6,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            logging_steps=1000,
            save_strategy="no",
            disable_tqdm=True,
            **more,
        )
        trainer.callback_handler.callbacks.insert(0, clock)
        timed(trainer, "_generate", "rollout")
        timed(trainer, "_calculate_rewards", "rewards")
        timed(trainer, "compute_loss", "log-probabilities")  # the loss's forward pass
        timed(trainer.accelerator, "backward", "backward")
        lengths: list[int] = []
        score = trainer._generate_and_score_completions

        def checked(inputs: list) -> dict[str, Any]:
            output = score(inputs)
            lengths.extend(output["completion_mask"].sum(1).tolist())
            return output

        trainer._generate_and_score_completions = checked
        with contextlib.redirect_stdout(io.StringIO()):  # the trainers' logs
            trainer.train()
        assert set(lengths) == {LENGTH}, f"the work is not equal: completions of {set(lengths)} tokens"
    # a machine that others use too is slow now and then; a mean would be of those moments
    medians = {part: statistics.median(step[part] for step in clock.steps) for part in clock.steps[0]}
    return medians | {"memory": peak_memory()}


def peak_memory() -> float:
    """MB that this process has taken at most: of the GPU, or else of the machine."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure_alone(*arguments: Any, **more: Any) -> dict[str, float]:
    """`measure` in a process of its own, whose memory is no other run's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, *arguments, **more).result()


def training(parts: dict[str, float]) -> float:
    """Seconds of the forward and the backward pass."""
    return parts["log-probabilities"] + parts["backward"]


def ratios(runs: dict[str, dict[str, float]]) -> dict[str, float]:
    """What a round says."""
    rollout, off = runs["ours"]["rollout"], runs["ours, greedy off"]["rollout"]
    return {
        "rollout": runs["stock"]["rollout"] / rollout,
        "step": runs["stock"]["step"] / runs["ours"]["step"],
        "training": training(runs["ours, no sharing"]) / training(runs["ours"]),
        "greedy": (rollout / off - 1) * SAMPLES,
        "database": runs["ours"]["database"] / rollout,
        "memory": runs["ours"]["memory"] / runs["stock"]["memory"],
    }


def spread(values: list[float]) -> str:
    """The median and, of several values, the quartiles."""
    median = f"{statistics.median(values):.2f}"
    if len(values) == 1:
        return median
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{median} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--steps", type=int, default=3, help="measured steps, after one that warms up")
    parser.add_argument("--rounds", type=int, default=1, help="how often all are run, one after the other")
    parser.add_argument("--database", default="sqlite", help="sqlite, local, docker or a URL")
    parser.add_argument("--quick", action="store_true", help="one step of the small model")
    parser.add_argument("--json", type=Path, help="writes the figures here")
    arguments = parser.parse_args()
    sizes, steps = (["1m"], 1) if arguments.quick else (arguments.sizes, arguments.steps)
    rounds = 1 if arguments.quick else arguments.rounds
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, ",
        end="",
    )
    print(
        f"torch {torch.__version__}, TRL {trl.__version__}, {arguments.database}; seconds a step, median of "
        f"{steps}"
    )
    columns = ("rollout", "database", "log-probabilities", "backward", "rewards", "rest", "step", "memory")
    print(f"{'':<22}" + "".join(f"{name:>18}" for name in columns))
    figures: dict[str, Any] = {}
    for size in sizes:
        seconds, found = [], []
        for _ in range(rounds):
            runs = {
                "stock": measure_alone(stock, size, steps, arguments.database),
                "ours": measure_alone(ours, size, steps, arguments.database),
                "ours, greedy off": measure_alone(ours, size, steps, arguments.database, greedy_eval="off"),
                "ours, no sharing": measure_alone(ours, size, steps, arguments.database, shared_prefix="off"),
            }
            for name, parts in runs.items():
                shown = "".join(f"{parts.get(column, 0.0):>18.3f}" for column in columns)
                print(f"{size} {name:<18}{shown}", flush=True)
            seconds.append(runs)
            found.append(ratios(runs))
        figures[size] = {"seconds": seconds, "ratios": found}
    for size, each in figures.items():
        shown = {name: spread([one[name] for one in each["ratios"]]) for name in each["ratios"][0]}
        print(
            f"{size}: rollout with greedy evaluation {shown['rollout']} times as fast as stock, the whole "
            f"step {shown['step']} times; forward and backward {shown['training']} times as fast as without "
            f"shared prompts; greedy rows cost {shown['greedy']} of their share of rows; database time not "
            f"hidden {shown['database']} of the rollout; peak memory {shown['memory']} times stock's"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
