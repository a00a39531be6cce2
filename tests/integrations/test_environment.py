"""Episodes in the hands of another trainer's tool loop: what its calls return, and that it is judged as ours are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from databases import rows_of
from fakes import RULES, BrokenDatabase, play_script
from launching import ROOT, run_here
from test_rollout import call
from tokenizers import AddedToken
from training import ON_A_CPU
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from trl_dbbench import OutcomeReward, to_dataset
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Verdict
from trl_dbbench.episode.protocol import Answer, Operation, ToolsProtocol, ToolsSQLProtocol
from trl_dbbench.episode.types import Episode, Sampling, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.integrations.calls import Refused, written
from trl_dbbench.integrations.environment import (
    DatabaseEnvironment,
    SQLAnswerEnvironment,
    environment_reward,
    environments,
)
from trl_dbbench.rewards.learned import RewardModel
from trl_dbbench.rewards.steps import executes
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.tasks import Task

COUNT = "SELECT COUNT(*) FROM orders WHERE late = 1"


@pytest.mark.parametrize(
    "text",
    [
        "%<think>%",
        "</think>",
        "[THINK]",
        "[/THINK]",
        "<|start|>",
        "<channel|>",
        "</tool_call>",
        r"\</\[THINK]",
    ],
)
def test_marks_in_a_statement_or_an_answer_are_text(text: str) -> None:
    assert ToolsProtocol().parse(written("execute_sql", query=f"SELECT '{text}'")) == Operation(
        f"SELECT '{text}'"
    )
    assert ToolsProtocol().parse(written("commit_final_answer", answers=[text])) == Answer(
        str([text]), (text,)
    )
    assert ToolsSQLProtocol().parse(written("submit_sql", query=text)) == Answer(text)


def test_an_episode(late_orders: Task, database: Database) -> None:
    with environments(database) as new:
        environment = new()
        environment.reset(task=late_orders.to_json(), prompt="TRL hands over the other columns, too")
        assert environment.execute_sql("SELECT later FROM orders").startswith("1054 (42S22): Unknown column")
        assert environment.execute_sql(COUNT) == "[(2,)]"
        assert environment.commit_final_answer(["2"]) == "The answer is recorded. The session is over."
        assert environment.execute_sql(COUNT) == "The answer is recorded. The session is over."
        episode = environment.episode
        assert (episode.status, episode.right) == (Status.ANSWERED, True)
        assert episode.statements == ["SELECT later FROM orders", COUNT]
        assert OutcomeReward()([episode]) == [1.0]

        environment.reset(task=late_orders.to_json())
        environment.commit_final_answer(["3"])
        assert (environment.episode.right, len(environment.episode.turns)) == (False, 1), "a new episode"
        assert len(episode.turns) == 3, "the one before is as it was"


def test_an_answer_that_is_sql(late_orders: Task, sqlite_database: Database) -> None:
    with environments(sqlite_database, "tools_sql") as new:
        environment = new()
        assert isinstance(environment, SQLAnswerEnvironment)
        environment.reset(task=late_orders.to_json())
        environment.submit_sql(COUNT)
        assert environment.episode.right
        environment.reset(task=late_orders.to_json())
        environment.submit_sql("SELECT 3")
        assert not environment.episode.right


def test_environments_do_not_see_each_other(late_orders: Task, server_database: Database) -> None:
    with environments(server_database) as new:
        several = [new() for _ in range(4)]
        for each in several:
            each.reset(task=late_orders.to_json())
        for number, each in enumerate(several):
            assert each.execute_sql(f"UPDATE orders SET late = {number}") != ""
        for number, each in enumerate(several):
            assert each.execute_sql("SELECT DISTINCT late FROM orders") == f"[({number},)]"
    with server_database.sandbox(late_orders) as sandbox:
        assert rows_of(sandbox) == {"orders": [(1, 0), (2, 1), (3, 1)]}, "and are over with the context"
    assert [each.episode.status for each in several] == [Status.OUT_OF_TOKENS] * 4


def test_what_ends_an_episode_without_an_answer(late_orders: Task, sqlite_database: Database) -> None:
    with environments(sqlite_database, max_turns=2) as new:
        environment = new()
        environment.reset(task=late_orders.to_json())
        environment.execute_sql(COUNT)
        assert environment.execute_sql(COUNT) == "[(2,)]\nNo call is left. The session is over."
        assert environment.commit_final_answer(["2"]) == "No call is left. The session is over."
        limit = environment.episode
        environment.reset(task=late_orders.to_json())
        environment.execute_sql(COUNT)
        stopped = environment.episode
        environment.reset(task=late_orders.to_json())
        silent = environment.episode
    assert [limit.status, stopped.status, silent.status] == [
        Status.TURN_LIMIT,
        Status.OUT_OF_TOKENS,
        Status.OUT_OF_TOKENS,
    ]
    assert OutcomeReward()([limit, stopped, silent]) == [-0.8] * 3


@pytest.mark.parametrize("at_start", [True, False])
def test_a_failed_database_is_no_reward(late_orders: Task, at_start: bool) -> None:
    with environments(BrokenDatabase(at_start)) as new:
        environment = new()
        environment.reset(task=late_orders.to_json())
        assert environment.execute_sql(COUNT) == "The database has failed. The session is over."
        logged: dict[str, float] = {}
        reward = environment_reward(OutcomeReward())
        assert reward(environments=[environment], log_metric=logged.__setitem__) == [None]
        assert logged == {"environment/accuracy_void_wrong": 0.0, "environment/void": 1.0}


def test_void_episodes_are_logged_with_the_accuracy_that_counts_them(late_orders: Task) -> None:
    """5 of 20 are right, and 15 void."""
    right = Episode(late_orders, [], Sampling(), status=Status.ANSWERED, verdict=Verdict(True))
    played = [right] * 5 + [Episode(late_orders, [], Sampling(), fault="2003: cannot connect")] * 15
    logged: dict[str, float] = {}
    rewards = environment_reward(OutcomeReward())(
        environments=[SimpleNamespace(episode=each) for each in played],  # type: ignore[misc]
        log_metric=logged.__setitem__,
    )
    assert list(rewards) == [1.0] * 5 + [None] * 15
    assert logged == {"environment/accuracy_void_wrong": 0.25, "environment/void": 0.75}


def test_arguments_that_a_model_made_up(late_orders: Task, sqlite_database: Database) -> None:
    with environments(sqlite_database) as new:
        environment = new()
        environment.reset(task=late_orders.to_json())
        assert environment.execute_sql(7) == "Error: execute_sql needs the argument query, a string."  # type: ignore[arg-type]
        assert environment.commit_final_answer("2").startswith("Error: commit_final_answer needs")  # type: ignore[arg-type]
        assert environment.commit_final_answer([2]) == "The answer is recorded. The session is over."  # type: ignore[list-item]
        assert environment.episode.right


def test_a_reward_with_a_value_for_each_turn(late_orders: Task, sqlite_database: Database) -> None:
    reward = environment_reward(executes)
    assert reward.__name__ == "executes"
    with environments(sqlite_database) as new:
        environment = new()
        environment.reset(task=late_orders.to_json())
        for sql in (COUNT, "SELECT", COUNT):
            environment.execute_sql(sql)
        assert reward(environments=[environment]) == [2.0]


def test_a_reward_model_is_refused() -> None:
    """It would read another conversation than the policy: nobody tells it the tools and template settings."""
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=SimpleNamespace))
    reader = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=0))
    with pytest.raises(ConfigError, match="takes no reward model such as 'model:rm', which must"):
        environment_reward(RewardModel("rm", model, reader))  # type: ignore[arg-type]


def test_errors_of_use(sqlite_database: Database) -> None:
    with pytest.raises(ConfigError, match="an environment's protocol is tools or tools_sql, not 'text'"):
        environments(sqlite_database, "text").__enter__()
    with environments(sqlite_database) as new:
        with pytest.raises(ConfigError, match="call reset"):
            new().execute_sql("SELECT 1")
        with pytest.raises(ConfigError, match="call reset"):
            _ = new().episode


@pytest.mark.parametrize(
    ("kind", "protocol"), [(DatabaseEnvironment, ToolsProtocol()), (SQLAnswerEnvironment, ToolsSQLProtocol())]
)
def test_the_model_reads_of_the_tools_what_it_reads_with_our_trainer(
    kind: type[DatabaseEnvironment], protocol: ToolsProtocol
) -> None:
    names = [tool["function"]["name"] for tool in protocol.tools or ()]
    for name, tool in zip(names, protocol.tools or (), strict=True):
        shown = get_json_schema(getattr(kind, name))["function"]
        assert (shown["description"], shown["parameters"]["required"]) == (
            tool["function"]["description"],
            tool["function"]["parameters"]["required"],
        )
        assert shown["parameters"]["properties"] == tool["function"]["parameters"]["properties"]


def mistaken(answer: str, gold: list) -> bool:
    raise KeyError("a mistake of the grader")


@pytest.mark.timeout(60)
def test_a_grader_that_fails(late_orders: Task, sqlite_database: Database) -> None:
    """Whoever waits for the call is told, and whoever wants the reward gets the grader's own error."""
    with environments(sqlite_database, grader="test_environment.mistaken") as new:
        environment = new()
        environment.reset(task=late_orders.to_json())
        assert environment.execute_sql(COUNT) == "[(2,)]"
        with pytest.raises(Refused, match="The episode failed: KeyError"):
            environment.commit_final_answer(["2"])
        for wanted in (lambda: environment.episode, lambda: environment.execute_sql(COUNT)):
            with pytest.raises(KeyError, match="a mistake of the grader"):
                wanted()


# --- stock GRPOTrainer -----------------------------------------------------------------------------------


class ToolCaller(Qwen2ForCausalLM):
    """A model of random weights that writes one of `first`, reads what came back, and writes one of `then`.

    Args:
        start: the id at which its turns begin.
        first, then: ids of whole turns, equally likely.
    """

    def __init__(self, config: Qwen2Config, start: int, first: list[int], then: list[int]):
        super().__init__(config)
        self._start, self._first, self._then = start, first, then

    def forward(self, input_ids: torch.Tensor | None = None, **kwargs: object):
        output = super().forward(input_ids=input_ids, **kwargs)
        if not torch.is_grad_enabled() and input_ids is not None:
            for row, ids in enumerate(input_ids.tolist()):
                called = set(ids) & set(self._first)
                wanted = (
                    (self._then if called else self._first)
                    if ids[-1] == self._start
                    else [self.config.eos_token_id]
                )
                output.logits[row, -1, wanted] += 100.0
        return output


def test_stock_grpo_trains_and_its_rewards_are_ours(
    late_orders: Task, tiny_model: str, sqlite_database: Database, tmp_path
) -> None:
    """Three updates of TRL's own trainer; then each episode is played again by our player, from its texts."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model, padding_side="left")
    tokenizer.chat_template = qwen3_chat_template  # TRL reads calls by the template
    look, stumble = call("execute_sql", query=COUNT), call("execute_sql", query="SELECT")
    right, wrong = (call("commit_final_answer", answers=[each]) for each in "27")
    turns = [look, stumble, right, wrong, "I give up."]
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in turns])
    ids = tokenizer.convert_tokens_to_ids(turns)
    start = tokenizer("<|im_start|>assistant\n")["input_ids"][-1]
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = ToolCaller(config, start, ids[:2], ids[2:])
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    played: list[tuple[Episode, list[str], float]] = []

    def note(environments, completions, **kwargs) -> list[float]:
        for environment, messages in zip(environments, completions, strict=True):
            calls = [
                each["tool_calls"][0]["function"] if "tool_calls" in each else None
                for each in messages
                if each["role"] == "assistant"
            ]
            texts = [call(each["name"], **each["arguments"]) if each else "I give up." for each in calls]
            (value,) = OutcomeReward()([environment.episode])
            played.append((environment.episode, texts, value))
        return [0.0] * len(environments)

    with environments(sqlite_database) as new:
        trainer = GRPOTrainer(
            model=model,
            environment_factory=new,
            reward_funcs=[environment_reward(OutcomeReward()), note],
            args=GRPOConfig(
                output_dir=str(tmp_path),
                num_generations=4,
                per_device_train_batch_size=4,
                max_steps=3,
                max_completion_length=200,
                learning_rate=0.1,
                seed=3,
                **{**ON_A_CPU, "logging_steps": 1},
            ),
            train_dataset=to_dataset([late_orders], protocol="tools"),
            processing_class=tokenizer,
        )
        before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
        trainer.train()
    assert [entry["environment/void"] for entry in trainer.state.log_history if "reward" in entry] == [
        0.0
    ] * 3
    assert len(played) == 12
    assert not torch.equal(before, model.model.layers[0].mlp.up_proj.weight)
    ours = [
        play_script(late_orders, [*texts, *["I give up."] * 3], tokenizer, sqlite_database, "tools", RULES)
        for _, texts, _ in played
    ]
    assert [value for *_, value in played] == OutcomeReward()(ours)
    assert {1.0, -1.0, -0.8} == set(OutcomeReward()(ours)), "all three ways to end were seen"
    rewards = [
        entry["rewards/outcome/mean"]
        for entry in trainer.state.log_history
        if "rewards/outcome/mean" in entry
    ]
    assert sum(rewards) / 3 == pytest.approx(sum(value for *_, value in played) / 12, abs=1e-6)


def test_the_recipe(
    tiny_model: str, late_orders: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of random weights makes no calls; the recipe trains it all the same."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = qwen3_chat_template
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model, ignore=shutil.ignore_patterns("chat_template.jinja"))
    tokenizer.save_pretrained(model)
    (tmp_path / "tasks.jsonl").write_text(late_orders.to_json() + "\n")
    run_here(
        monkeypatch,
        ROOT / "recipes" / "environment_dbbench.py",
        *("--config", "recipes/qwen2.5-7b-environment.yaml", "--model_name_or_path", model),
        *("--tasks", tmp_path / "tasks.jsonl", "--database", "sqlite", "--output_dir", tmp_path / "run"),
        *("--max_steps", 1, "--num_generations", 2, "--per_device_train_batch_size", 2),
        *("--max_completion_length", 8, "--use_cpu", "true", "--bf16", "false", "--dtype", "float32"),
        *("--gradient_checkpointing", "false", "--system_prompt", "Be quick."),
    )
    assert (tmp_path / "run" / "adapter_model.safetensors").is_file()
    played = find_trained(tmp_path / "run").settings
    assert played.system_prompt == "Be quick.", "an evaluation plays what was trained"
    assert (played.max_turns, played.max_completion_length, played.max_turn_tokens) == (10, 8, 8)
    log = json.loads((tmp_path / "run" / "checkpoint-1" / "trainer_state.json").read_text())
    assert log["log_history"][0]["rewards/outcome/mean"] == pytest.approx(-0.8)
