"""Process reward models: labels for turns, the tokens that are trained, and `prm:PATH` in a YAML."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from fakes import play_script
from launching import ROOT, run_here
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from saved_runs import LOOK, answer, count_scripts, count_task, delete_task, save_episodes, save_run, sql
from training import episodes_in, make_trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_dbbench.data.reward_data import played_in, steps_of_files
from trl_dbbench.data.step_labels import by_state_progress, label_steps
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge, Verdict
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import Answer, Operation, Reply, get_protocol
from trl_dbbench.episode.types import Completion, Episode, Sampling, Status, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.evaluate import evaluate, open_model
from trl_dbbench.rewards.process import ProcessRewardModel, StepReader, StepTokens
from trl_dbbench.rewards.registry import load_reward_functions, with_step_rewards
from trl_dbbench.rewards.steps import potential
from trl_dbbench.runs.conversations import Labels, completion_messages, prompt_messages, saved_episodes
from trl_dbbench.runs.replay import replay
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.tasks import load_tasks
from trl_dbbench.tasks.entries import write_entries

RECIPE = ROOT / "recipes" / "prm_dbbench.py"
QUICKSTART = ROOT / "recipes" / "prm_quickstart.yaml"
GRPO, GRPO_QUICKSTART = ROOT / "recipes" / "grpo_dbbench.py", ROOT / "recipes" / "quickstart.yaml"

ASK = "</tool_call>"
TOKENS = StepTokens(ASK)


@pytest.fixture
def reader(tokenizer) -> StepReader:
    return StepReader(tokenizer, TOKENS)


@pytest.fixture
def process_model(tiny_model: str, tmp_path: Path) -> str:
    """The policy's model of random weights, with a `prm.json` beside it."""
    folder = tmp_path / "critic"
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    TOKENS.write(folder)
    return str(folder)


def test_an_adapter_whose_layers_have_other_names(process_model: str, tmp_path: Path) -> None:
    """PEFT would leave them out, and the base model would judge."""
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(process_model), LoraConfig())
    adapted.save_pretrained(tmp_path / "adapter")
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    renamed = {name.replace("self_attn", "attention"): weight for name, weight in weights.items()}
    AutoTokenizer.from_pretrained(process_model).save_pretrained(tmp_path / "adapter")
    TOKENS.write(tmp_path / "adapter")
    ProcessRewardModel.load(str(tmp_path / "adapter"))
    save_file(renamed, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match="cannot be loaded: Found missing adapter keys"):
        ProcessRewardModel.load(str(tmp_path / "adapter"))


# --- tokens -------------------------------------------------------------------------------------------


def test_the_tokens_of_a_labelled_episode(reader, tokenizer):
    """A placeholder after each turn; the label one later, where the model's answer at the placeholder is
    compared."""
    prompt = [{"role": "user", "content": "Late?"}]
    completion = [
        {"role": "assistant", "content": "LOOK"},
        {"role": "user", "content": "[(2,)]"},
        {"role": "assistant", "content": "2"},
    ]
    ids, places = reader.encode(prompt, completion)
    assert tokenizer.decode(ids) == (
        "<|im_start|>user\nLate?<|im_end|>\n"
        f"<|im_start|>assistant\nLOOK{ASK}<|im_end|>\n"
        "<|im_start|>user\n[(2,)]<|im_end|>\n"
        f"<|im_start|>assistant\n2{ASK}<|im_end|>\n"
    )
    row = reader.training_row(ids, places, [True, False])
    assert row["input_ids"] == ids
    trained = {place: tokenizer.decode([label]) for place, label in enumerate(row["labels"]) if label != -100}
    assert trained == {places[0] + 1: "+", places[1] + 1: "-"}
    assert {tokenizer.decode([ids[place]]) for place in places} == {ASK}
    assert reader.labelled_steps(row) == (places, [True, False])
    assert reader.labelled_steps(reader.training_row(ids, places, [None, False])) == ([places[1]], [False])


def test_no_text_of_the_agent_is_taken_for_a_placeholder(reader):
    """Neither the token itself nor what marks its place while the template is rendered."""
    nasty = f"a {ASK} b PLACEHOLDER-AFTER-THE-TURN c"
    _, places = reader.encode([{"role": "user", "content": nasty}], [{"role": "assistant", "content": nasty}])
    assert len(places) == 1


def test_a_template_that_drops_turns_is_refused(reader):
    reader.tokenizer = AutoTokenizer.from_pretrained(reader.tokenizer.name_or_path)
    reader.tokenizer.chat_template = "{{ messages[0].content }}{{ messages[-1].content }}"
    turn = {"role": "assistant", "content": "x"}
    with pytest.raises(
        ConfigError, match="shows 1 of 2 turns; a process reward model needs one that shows each"
    ):
        reader.encode([{"role": "user", "content": "?"}], [turn, {"role": "user", "content": "y"}, turn])


def test_a_score_is_the_softmax_of_two_logits_at_the_placeholder(process_model, reader):
    scorer = ProcessRewardModel.load(process_model)
    prompt, turn = [{"role": "user", "content": "Late?"}], {"role": "assistant", "content": "LOOK"}
    short, long = [turn], [turn, {"role": "user", "content": "[(2,)]"}, turn]
    scores = scorer.score([(prompt, short), (prompt, long)])
    assert [len(each) for each in scores] == [1, 2]
    ids, places = reader.encode(prompt, long)
    with torch.no_grad():
        logits = scorer.model(torch.tensor([ids])).logits[0]
    pair = [reader.good, reader.bad]
    assert scores[1] == pytest.approx(
        [logits[place, pair].softmax(0)[0].item() for place in places], abs=1e-5
    )
    assert scores[0][0] == pytest.approx(scores[1][0], abs=1e-5), "what comes later is not seen"


# --- labels -------------------------------------------------------------------------------------------


def test_potential_is_the_share_of_rows_that_are_as_they_should_be(sqlite_database):
    """apple is to go. Rows in either state: 3 at first, of which 2 agree."""
    task = delete_task(0)
    gold = Judge(sqlite_database).gold_state(task).state
    seen = []
    with sqlite_database.sandbox(task) as sandbox:
        seen.append(potential(sandbox.state(), gold))
        sandbox.execute("DELETE FROM fruits WHERE name = 'plum'")  # apple, pear | pear, plum
        seen.append(potential(sandbox.state(), gold))
        sandbox.execute("INSERT INTO fruits VALUES ('plum', 4)")
        sandbox.execute("DELETE FROM fruits WHERE name = 'apple'")
        seen.append(potential(sandbox.state(), gold))
    assert seen == pytest.approx([2 / 3, 1 / 3, 1])


def test_labels_by_state_progress(tmp_path, sqlite_database, tokenizer):
    look = sql("SELECT * FROM fruits")
    wrong, right = (
        sql("DELETE FROM fruits WHERE name = 'plum'"),
        sql("DELETE FROM fruits WHERE name = 'apple'"),
    )
    scripts = [
        (delete_task(0), [look, right, answer("done")]),
        (delete_task(0), [wrong, look, answer("done")]),
    ]
    run = save_run(tmp_path, sqlite_database, tokenizer, scripts)
    played = list(saved_episodes(run, []))
    labels = by_state_progress(played, sqlite_database, Judge(sqlite_database))
    assert labels == [[None, True, True], [False, None, False]]


def test_a_statement_that_ended_the_server_is_not_executed_for_its_label(
    tmp_path, sqlite_database, tokenizer
):
    """Executed again, it would end the server of all the others as well."""
    wrong = sql("DELETE FROM fruits WHERE name = 'plum'")
    episode = play_script(delete_task(0), [wrong, sql("SELECT 1"), wrong], tokenizer, sqlite_database)
    episode.crash()
    played = list(saved_episodes(save_episodes(tmp_path, sqlite_database, [episode]), []))
    assert by_state_progress(played, sqlite_database, Judge(sqlite_database)) == [[None, None, False]]


def continued(run: Path, database: Database, model: str, k: int) -> list[Labels | None]:
    """The labels by this model's continuations."""
    return label_steps(
        list(saved_episodes(run, [])),
        RunSettings.read(run),
        "continuations",
        open_database=lambda: nullcontext(database),
        k=k,
        model=model,
    )


def test_labels_by_continuations(tmp_path, sqlite_database):
    """The demo's model plays on: after a right look at the rows it answers right, after a wrong one it cannot."""
    model, system_prompt = str(ROOT / "recipes/tiny/model"), "Work on the MySQL database."
    backend, policy = open_model(find_trained(model=model))
    player = Player.of(policy.tokenizer, sqlite_database, eos_token_ids=policy.eos_token_ids)
    tasks = [t for t in load_tasks(ROOT / "recipes/tiny/train.jsonl")[:60] if t.is_question][:8]
    played = evaluate(tasks, player, backend, system_prompt=system_prompt, progress=False).episodes
    right = next(episode for episode in played if episode.right and len(episode.turns) == 2)
    good, final = (turn.text for turn in right.turns)
    episodes = [
        play_script(right.task, turns, policy.tokenizer, sqlite_database)
        for turns in ([good, answer("[('never',)]")], [sql("SELECT 'x'"), final], [sql("SELECT 1"), "?"])
    ]
    settings = {"system_prompt": system_prompt, "max_turn_tokens": 48}
    # no token was left after its first statement
    short = play_script(right.task, [good, final], policy.tokenizer, sqlite_database)
    short.turns, short.status, short.verdict = short.turns[:1], Status.OUT_OF_TOKENS, Verdict(False)
    run = save_episodes(tmp_path, sqlite_database, [*episodes, short], **settings)
    # the last one does not come out as it was saved: the database says something else now
    log = run / "episodes.jsonl"
    log.write_text(log.read_text().replace("[(1,)]", "[(7,)]"))
    assert continued(run, sqlite_database, model, k=4) == [[True, False], [False, True], None, [False]]


def test_a_turn_after_which_nothing_fits_has_no_label(tmp_path, sqlite_database):
    model, system_prompt = str(ROOT / "recipes/tiny/model"), "Work on the MySQL database."
    _, policy = open_model(find_trained(model=model))
    (task,) = [t for t in load_tasks(ROOT / "recipes/tiny/train.jsonl")[:60] if t.is_question][:1]
    episode = play_script(task, [sql("SELECT 1"), answer("[('x',)]")], policy.tokenizer, sqlite_database)
    known = {"system_prompt": system_prompt, "max_completion_length": 10}
    run = save_episodes(tmp_path, sqlite_database, [episode], **known)
    assert continued(run, sqlite_database, model, k=1) == [[None, False]]


def test_labels_that_need_what_is_not_there(tmp_path, sqlite_database, tokenizer):
    run = save_run(tmp_path, sqlite_database, tokenizer, count_scripts([2]))
    played, settings = list(saved_episodes(run, [])), RunSettings.read(run)
    with pytest.raises(
        ConfigError, match="no episode has the step reward 'progress' in its turns; label by outcome"
    ):
        label_steps(played, settings, "progress", open_database=lambda: nullcontext(sqlite_database))
    with pytest.raises(
        ConfigError, match="continuations needs at least one continuation and a model; given is 0"
    ):
        label_steps(
            played,
            settings,
            "continuations",
            open_database=lambda: nullcontext(sqlite_database),
            k=0,
            model="m",
        )


def test_steps_of_others(tmp_path, reader, tokenizer):
    """The predecessor's rows, with their own placeholder or ours, and Math-Shepherd's labels."""
    rows = [
        {"input": f"How many?\nLook.{ASK} Two.{ASK}", "label": ["+", "-"]},
        {
            "input": "How many?\nLook. ки Two. ки",
            "label": ["good", "bad"],
            "placeholder_token": "ки",
            "reward_tokens": ["good", "bad"],
        },
        {"input": f"How many?\nLook.{ASK} Two.{ASK}", "label": "How many?\nLook.+ Two.-"},
    ]
    file = tmp_path / "steps.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = list(steps_of_files([str(file)], reader, TOKENS))
    assert {task for task, _ in read} == {"How many?"}, "one task, whatever its steps"
    assert [reader.labelled_steps(row)[1] for _, row in read] == [[True, False]] * 3
    assert tokenizer.decode(read[0][1]["input_ids"]) == f"How many?\nLook.{ASK} Two.{ASK}<|im_end|>"

    write_entries(tmp_path / "steps.parquet", rows[:2])
    assert list(steps_of_files([str(tmp_path / "steps.parquet")], reader, TOKENS)) == read[:2], "with nulls"
    file.write_text(json.dumps({**rows[0], "reward_tokens": ["+"]}) + "\n")
    with pytest.raises(ConfigError, match=r"line 1: .*reward_tokens, one for good and one for bad"):
        list(steps_of_files([str(file)], reader, TOKENS))

    for label in (["+"], [{"rating": 1}, {"rating": -1}], "a+ c-"):
        file.write_text(json.dumps({"input": f"a{ASK} b{ASK}", "label": label}) + "\n")
        with pytest.raises(
            ConfigError, match=r"line 1: 'label' must have one of \['\+', '-'\] for each of the 2"
        ):
            list(steps_of_files([str(file)], reader, TOKENS))


# --- from episodes to a model and back ----------------------------------------------------------------


def train(monkeypatch, output_dir: Path, *options: object) -> None:
    run_here(
        monkeypatch,
        RECIPE,
        *("--config", QUICKSTART, "--output_dir", output_dir, "--warmup_steps", 0),
        *("--per_device_train_batch_size", 2, "--num_train_epochs", 1, "--disable_tqdm", "true", *options),
    )


@pytest.mark.slow
def test_it_learns_which_step_was_wrong(tmp_path, sqlite_database, tokenizer, monkeypatch, capsys):
    """Eight tasks, each right once and once without WHERE; two tasks are held out."""
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, count_scripts(range(1, 9)))
    options = ("--num_train_epochs", 10, "--learning_rate", 1e-3, "--held_out_share", 0.25)
    train(monkeypatch, tmp_path / "prm", "--episodes", run, *options)
    assert "Held out, 8 turns of 2 tasks, 50.0 % of them good: accuracy 100.0 %" in capsys.readouterr().out

    (scorer,) = load_reward_functions([f"prm:{tmp_path / 'prm'}"], database=sqlite_database)
    scorer.read_as(get_protocol("text"), {}, "cpu")
    settings = RunSettings.read(run)
    (right, task), (wrong, _) = list(saved_episodes(run, []))[:2]
    good, bad = scorer.score(
        [(prompt_messages(r, task, settings), completion_messages(r, settings)) for r in (right, wrong)]
    )
    assert min(good) > 0.5 > max(bad)
    assert RunSettings.of_file(tmp_path / "prm" / "run.json").protocol == settings.protocol


@pytest.mark.slow
def test_an_adapter_by_yaml_alone_is_a_reward_of_the_next_run(
    tmp_path, sqlite_database, tokenizer, monkeypatch
):
    """PRM by LoRA, then GRPO with it: a value for each turn and their sum are in the log."""
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, count_scripts(range(1, 5)))
    lora = ("--use_peft", "true", "--lora_target_modules", "all-linear")
    train(monkeypatch, tmp_path / "prm", "--episodes", run, "--labels", "state_progress", *lora)
    assert (tmp_path / "prm" / "adapter_model.safetensors").is_file()
    assert json.loads((tmp_path / "prm" / "prm.json").read_text()) == {
        "placeholder_token": ASK,
        "reward_tokens": ["+", "-"],
        "labels": "state_progress",
    }
    run_here(
        monkeypatch,
        GRPO,
        *("--config", GRPO_QUICKSTART, "--reward_funcs", "outcome", f"prm:{tmp_path / 'prm'}"),
        *(
            "--num_generations",
            4,
            "--per_device_train_batch_size",
            4,
            "--max_steps",
            1,
            "--disable_tqdm",
            "true",
        ),
        *("--eval_strategy", "no", "--eval_on_start", "false", "--output_dir", tmp_path / "grpo"),
    )
    sampled = [episode for episode in episodes_in(tmp_path / "grpo") if episode["phase"] == "train"]
    for episode in sampled:
        values = [turn["rewards"]["prm"] for turn in episode["turns"]]
        assert all(0 < value < 1 for value in values)
        assert episode["rewards"]["prm"] == pytest.approx(sum(values), abs=1e-5)
    assert len(sampled) == 4


def test_replay_scores_again(tiny_model, process_model, sqlite_database, demo_tasks, tmp_path):
    rewards = load_reward_functions(["outcome", f"prm:{process_model}"], database=sqlite_database)
    run = tmp_path / "run"
    options = {"reward_funcs": rewards, "max_steps": 1, "greedy_eval": "off"}
    make_trainer(tiny_model, sqlite_database, demo_tasks[:2], run, **options).train()
    notes: list[str] = []
    played = list(replay(run, sqlite_database, progress=False, notes=notes))
    assert [each.differences for each in played] == [[]] * 4 and notes == []
    assert all(each.episode.rewards["critic"] is not None for each in played)


def test_an_episode_whose_environment_failed_has_no_score(process_model, sqlite_database, tokenizer):
    scorer = ProcessRewardModel.load(process_model)
    episodes = [play_script(count_task(2), [LOOK, answer("2")], tokenizer, sqlite_database) for _ in range(2)]
    episodes[0].fail("2013: lost connection")
    prompt = [{"role": "user", "content": "?"}]
    values = scorer(episodes, [prompt] * 2, [episode.messages() for episode in episodes])
    assert values[0] is None and len(values[1]) == 2


def test_turns_of_a_program_have_no_score(process_model, late_orders):
    """The conversation leaves out turns that the harness wrote itself. They get None; the model's get a score."""
    acts = [Reply("Look."), Operation("SELECT 1"), Reply("Two."), Answer("2")]
    turns = [
        Turn(Completion([7], [0.0]) if isinstance(act, Reply) else Completion([], []), "Text.", act)
        for act in acts
    ]
    episode = Episode(late_orders, [1], Sampling(), turns, Status.ANSWERED)
    reward = with_step_rewards(ProcessRewardModel.load(process_model))
    prompts, completions = [[{"role": "user", "content": "?"}]], [episode.messages()]
    (total,) = reward(episode=[episode], prompts=prompts, completions=completions)
    assert [list(turn.rewards) for turn in turns] == [["critic"], [], ["critic"], []]
    assert total == pytest.approx(turns[0].rewards["critic"] + turns[2].rewards["critic"])


# --- refused ------------------------------------------------------------------------------------------


def refusal(name: str, database) -> str:
    with pytest.raises(ConfigError) as error:
        load_reward_functions([name], database=database)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_model_without_its_tokens(tiny_model, sqlite_database):
    said = refusal(f"prm:{tiny_model}", sqlite_database)
    assert "is not a process reward model: it has no prm.json" in said
    assert '{"placeholder_token": "<extra_0>", "reward_tokens": ["+", "-"]}' in said


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (
            {"placeholder_token": "<extra_0>", "reward_tokens": ["+", "-"]},
            "'<extra_0>' is not one token of",
        ),
        (
            {"placeholder_token": ASK, "reward_tokens": ["+", "not at all"]},
            "'not at all' is not one token of",
        ),
        ({"placeholder_token": "+", "reward_tokens": ["+", "-"]}, "must be three different tokens"),
        ({"placeholder_token": ASK, "reward_tokens": ["+"]}, "one for good and one for bad; given are"),
        ({"placeholder_token": ASK}, "is not a process reward model: no 'reward_tokens'"),
    ],
)
def test_tokens_that_are_not_there(process_model, sqlite_database, tokens, message):
    (Path(process_model) / "prm.json").write_text(json.dumps(tokens))
    assert message in refusal(f"prm:{process_model}", sqlite_database)


def test_a_model_without_its_own_tokenizer(process_model, sqlite_database):
    for file in Path(process_model).glob("*token*"):
        file.unlink()
    assert "has no tokenizer, and the policy's is not taken" in refusal(
        f"prm:{process_model}", sqlite_database
    )


def test_the_recipe_refuses_a_placeholder_that_is_no_token(tmp_path, sqlite_database, tokenizer, monkeypatch):
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, count_scripts([1]))
    with pytest.raises(SystemExit, match=r"error: '<extra_0>' is not one token of '.*tiny/model'"):
        train(monkeypatch, tmp_path / "prm", "--episodes", run, "--placeholder_token", "<extra_0>")


def test_greedy_episodes_have_no_step_rewards_and_are_left_out(tmp_path, sqlite_database, tokenizer):
    """As in a run with `greedy_eval: batch`: an equal text that was sampled has them, and is taken for it."""
    log = save_run(tmp_path, sqlite_database, tokenizer, count_scripts([2, 3])) / "episodes.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    sampled = json.loads(json.dumps(lines[0]))
    for turn in sampled["turns"]:
        turn["rewards"] = {"executes": -1.0}
    log.write_text("".join(json.dumps(line) + "\n" for line in (*lines, sampled)))
    played = played_in([str(tmp_path)], [])
    labels = label_steps(
        played, RunSettings.read(tmp_path), "executes", open_database=lambda: nullcontext(sqlite_database)
    )
    assert len(labels) == len(lines)
    assert [each for each in labels if each is not None] == [[False] * len(sampled["turns"])]
