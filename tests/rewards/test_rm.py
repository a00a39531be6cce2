"""Reward models: from a run's episodes to a YAML's `model:PATH`, its scores in the log, and again in a replay."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launching import ROOT, run_here
from saved_runs import count_scripts, count_task, save_run
from training import episodes_in, make_trainer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2ForSequenceClassification

from trl_dbbench.cli.serve import _reward as served_reward
from trl_dbbench.data.reward_data import pairs_of_files
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading.calibration import calibration, pair_calibration
from trl_dbbench.rewards.learned import Reader, RewardModel
from trl_dbbench.rewards.registry import describe_reward, load_reward_functions
from trl_dbbench.runs.replay import replay
from trl_dbbench.runs.settings import RunSettings

RECIPE = ROOT / "recipes" / "rm_dbbench.py"
QUICKSTART = ROOT / "recipes" / "rm_quickstart.yaml"
GRPO, GRPO_QUICKSTART = ROOT / "recipes" / "grpo_dbbench.py", ROOT / "recipes" / "quickstart.yaml"


@pytest.fixture
def reward_model(tiny_model: str, tmp_path: Path) -> str:
    """The folder of one of random weights that has the policy's tokenizer."""
    folder = tmp_path / "judge"
    torch.manual_seed(0)
    Qwen2ForSequenceClassification(AutoConfig.from_pretrained(tiny_model, num_labels=1)).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def run(tmp_path, sqlite_database, tokenizer) -> Path:
    """Eight tasks, each with a right episode and one that forgot WHERE."""
    return save_run(tmp_path / "run", sqlite_database, tokenizer, count_scripts(range(1, 9)))


def train(monkeypatch, run: Path, output_dir: Path, *options: object) -> None:
    run_here(
        monkeypatch,
        RECIPE,
        *("--config", QUICKSTART, "--episodes", run, "--output_dir", output_dir, "--warmup_steps", 0),
        *("--per_device_train_batch_size", 2, "--num_train_epochs", 1, "--disable_tqdm", "true", *options),
    )


# --- from episodes to a model -------------------------------------------------------------------------


@pytest.mark.slow
def test_it_learns_right_over_wrong(run, tmp_path, monkeypatch, capsys, sqlite_database):
    """Eight passes over six pairs. The two held-out tasks are told apart by the same words."""
    train(monkeypatch, run, tmp_path / "rm", "--num_train_epochs", 8, "--held_out_share", 0.25)
    printed = capsys.readouterr().out
    assert "Held out, 2 pairs of 2 tasks: accuracy 100.0 %" in printed

    (scorer,) = load_reward_functions([f"model:{tmp_path / 'rm'}"], database=sqlite_database)
    scorer.read_as(get_protocol("text"), {}, "cpu")
    question = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "How many were late?"}]
    statement = "Action: Operation\n```sql\nSELECT COUNT(*) FROM orders{}\n```"
    right, wrong = ([{"role": "assistant", "content": statement.format(w)}] for w in (" WHERE late = 1", ""))
    better, worse = scorer.score([(question, right), (question, wrong)])
    assert better > worse


@pytest.mark.slow
def test_an_adapter_by_yaml_alone_is_a_reward_of_the_next_run(run, tmp_path, monkeypatch):
    """RM by LoRA, then GRPO with it: its scores are in the log beside the outcome."""
    train(monkeypatch, run, tmp_path / "rm", "--use_peft", "true", "--lora_target_modules", "all-linear")
    assert (tmp_path / "rm" / "adapter_model.safetensors").is_file()
    learned_from, own = (RunSettings.of_file(each / "run.json") for each in (run, tmp_path / "rm"))
    assert (own.protocol, own.system_prompt) == (learned_from.protocol, learned_from.system_prompt)
    assert own.id is not None and own.rewards == {}, "it is a run of its own"
    run_here(
        monkeypatch,
        GRPO,
        *("--config", GRPO_QUICKSTART, "--reward_funcs", "outcome", f"model:{tmp_path / 'rm'}"),
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
    assert [sorted(episode["rewards"]) for episode in sampled] == [["outcome", "rm"]] * 4
    settings = json.loads((tmp_path / "grpo" / "run.json").read_text())
    assert settings["rewards"]["rm"] == {"function": f"model:{tmp_path / 'rm'}"}


def test_runs_without_pairs_are_no_data(tmp_path, sqlite_database, tokenizer, monkeypatch):
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, count_scripts([1])[:1])
    with pytest.raises(
        SystemExit, match="error: no pairs to train on: a task gives some if one of its episodes"
    ):
        train(monkeypatch, run, tmp_path / "rm")


def test_runs_of_two_protocols_are_refused(tmp_path, run, sqlite_database, tokenizer, monkeypatch):
    silent = [(count_task(1), ["I do not know."] * 3)]
    other = save_run(tmp_path / "other", sqlite_database, tokenizer, silent, protocol="tools")
    with pytest.raises(SystemExit, match=r"differ in protocol \('text', 'tools'\)"):
        train(monkeypatch, run, tmp_path / "rm", "--episodes", run, other)


def test_pairs_of_others_as_texts_and_as_messages(tmp_path, tokenizer):
    file = tmp_path / "pairs.jsonl"
    said = {side: [{"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
    rows = [
        {"prompt": "How many?", "chosen": " Two.", "rejected": " One."},
        {"prompt": [{"role": "user", "content": "How many?"}], **said},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (_, text), (_, chat) = pairs_of_files([str(file)], Reader(tokenizer))
    assert tokenizer.decode(text["chosen_ids"]) == "How many? Two.<|im_end|>"
    assert tokenizer.decode(chat["rejected_ids"]) == (
        "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\nrejected<|im_end|>\n"
    )
    rows = [{side: f"\n\nHuman: {place}?\n\nAssistant: {side}" for side in said} for place in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = [task for task, _ in pairs_of_files([str(file)], Reader(tokenizer))]
    assert tasks == ["Human: 0?", "Human: 1?", "Human: 2?"], "whole conversations, as in hh-rlhf"
    file.write_text('{"chosen": "a"}\n')
    with pytest.raises(ConfigError, match=r"pairs.jsonl, line 1: a pair needs 'chosen' and 'rejected'"):
        list(pairs_of_files([str(file)], Reader(tokenizer)))


def test_without_an_end_token_a_text_is_as_it_stands(tmp_path, tokenizer):
    """As those of BERT's family are; once it ended in the word None."""
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "How many?", "chosen": " Two.", "rejected": " Three."}) + "\n")
    endless = deepcopy(tokenizer)
    endless.eos_token = None
    [(_, ids)] = pairs_of_files([str(file)], Reader(endless))
    assert [tokenizer.decode(each) for each in ids.values()] == ["How many? Two.", "How many? Three."]


@pytest.mark.parametrize("prompt", ["How many?", [{"role": "user", "content": "How many?"}]])
@pytest.mark.parametrize("repeats_the_prompt", [False, True])
def test_pairs_of_texts_and_messages_mixed_and_of_whole_conversations(
    tmp_path, tokenizer, prompt, repeats_the_prompt
):
    asked = [{"role": "user", "content": "How many?"}] if repeats_the_prompt else []
    row = {"prompt": prompt, "chosen": [*asked, {"role": "assistant", "content": "Two."}]}
    row["rejected"] = row["chosen"] if isinstance(prompt, str) else "Two."
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(row) + "\n")
    [(_, ids)] = pairs_of_files([str(file)], Reader(tokenizer))
    told = "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\nTwo.<|im_end|>\n"
    assert [tokenizer.decode(each) for each in ids.values()] == [told, told]


def test_half_a_surrogate_pair_is_refused_before_the_tokenizer_sees_it(tmp_path, tokenizer):
    file = tmp_path / "pairs.jsonl"
    rows = [{"chosen": "a", "rejected": "b"}, {"chosen": "cut off: \ud83d", "rejected": "b"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=r"pairs.jsonl, line 2: holds half of a surrogate pair"):
        list(pairs_of_files([str(file)], Reader(tokenizer)))


@pytest.mark.parametrize("chosen", [None, 5, ["a"], [{"from": "gpt", "value": "a"}], {"role": "assistant"}])
def test_a_pair_that_is_neither_text_nor_messages_is_refused(tmp_path, tokenizer, chosen):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"chosen": chosen, "rejected": "b"}) + "\n")
    with pytest.raises(ConfigError, match=r"line 1: 'chosen' must be a text or a list of messages"):
        list(pairs_of_files([str(file)], Reader(tokenizer)))


# --- as a reward --------------------------------------------------------------------------------------


def test_it_reads_what_trl_would_give_it(tiny_model, reward_model, sqlite_database, demo_tasks, tmp_path):
    """`model:PATH` of a YAML and the path as TRL takes it score the same episodes alike."""
    ours = load_reward_functions([f"model:{reward_model}"], database=sqlite_database)
    settings = {"max_steps": 1, "greedy_eval": "off"}
    make_trainer(
        tiny_model, sqlite_database, demo_tasks[:2], tmp_path / "a", reward_funcs=[*ours], **settings
    ).train()
    make_trainer(
        tiny_model, sqlite_database, demo_tasks[:2], tmp_path / "b", reward_funcs=[reward_model], **settings
    ).train()
    scores = [
        [episode["rewards"]["judge"] for episode in episodes_in(tmp_path / folder)] for folder in ("a", "b")
    ]
    assert len({*scores[0]}) > 1
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_a_score_does_not_depend_on_its_neighbours(reward_model):
    """Short rows are padded beside long ones."""
    scorer = RewardModel.load(reward_model)
    rows = [[5] * length for length in (3, 40, 17)] + [list(range(20, 50))]
    assert scorer.score_ids(rows) == pytest.approx([scorer.score_ids([row])[0] for row in rows], abs=1e-5)


def test_replay_scores_again(tiny_model, reward_model, sqlite_database, demo_tasks, tmp_path):
    rewards = load_reward_functions(["outcome", f"model:{reward_model}"], database=sqlite_database)
    run = tmp_path / "run"
    trainer = make_trainer(
        tiny_model, sqlite_database, demo_tasks[:2], run, reward_funcs=rewards, max_steps=1, greedy_eval="off"
    )
    trainer.train()
    notes: list[str] = []
    played = list(replay(run, sqlite_database, progress=False, notes=notes))
    assert [each.differences for each in played] == [[]] * 4 and notes == []

    # another model in the same place is found out
    other = Qwen2ForSequenceClassification(AutoConfig.from_pretrained(tiny_model, num_labels=1))
    other.save_pretrained(reward_model)
    assert {d.what for each in replay(run, sqlite_database, progress=False) for d in each.differences} == {
        "reward judge"
    }
    # and that it is gone is said
    (Path(reward_model) / "config.json").unlink()
    list(replay(run, sqlite_database, progress=False, notes=notes))
    assert len(notes) == 1 and notes[0].startswith("The reward judge is not checked: there is no model in")


def test_a_server_of_the_environment_scores_alike(run, reward_model, sqlite_database):
    """`serve --openenv --reward model:PATH` gives an episode what a replay with it gives."""
    settings = RunSettings.read(run)
    reward = served_reward(f"model:{reward_model}", settings, sqlite_database)
    played = list(replay(run, sqlite_database, reward_funcs=[f"model:{reward_model}"], progress=False))
    assert len({each.episode.rewards["judge"] for each in played}) > 1
    for each in played:
        served = replace(each.episode, rewards={})
        reward(served)
        assert served.rewards == pytest.approx(each.episode.rewards, abs=1e-5)


def test_its_name_makes_it_again(reward_model, sqlite_database):
    (first,) = load_reward_functions([f"model:{reward_model}"], database=sqlite_database)
    assert describe_reward(first) == {"function": f"model:{Path(reward_model).resolve()}"}
    (again,) = load_reward_functions([describe_reward(first)["function"]], database=sqlite_database)
    assert again.score_ids([[5, 6, 7]]) == first.score_ids([[5, 6, 7]])


# --- refused ------------------------------------------------------------------------------------------


def refusal(name: str, database) -> str:
    with pytest.raises(ConfigError) as error:
        load_reward_functions([name], database=database)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_kind_that_is_not_known(sqlite_database):
    assert refusal("modell:runs/rm", sqlite_database) == (
        "unknown reward function 'modell:runs/rm'; of those with a colon there are model:PATH, prm:PATH."
    )
    assert "model:PATH, prm:PATH" in refusal("model:", sqlite_database)


@pytest.mark.parametrize("kind", ["model", "prm"])
def test_a_folder_that_is_not_there(kind, tmp_path, sqlite_database):
    said = refusal(f"{kind}:{tmp_path}/none", sqlite_database)
    assert said.startswith(f"there is no model in '{tmp_path}/none': it is no folder with a config.json")


def test_a_model_without_its_own_tokenizer(reward_model, sqlite_database):
    for file in Path(reward_model).glob("*token*"):
        file.unlink()
    said = refusal(f"model:{reward_model}", sqlite_database)
    assert "has no tokenizer, and the policy's is not taken in its place: the vocabularies may differ" in said


def test_a_tokenizer_of_another_vocabulary(reward_model, tokenizer, sqlite_database):
    larger = AutoTokenizer.from_pretrained(reward_model)
    larger.add_tokens([f"word{n}" for n in range(2000)])
    larger.save_pretrained(reward_model)
    assert "has a tokenizer of another vocabulary" in refusal(f"model:{reward_model}", sqlite_database)


def test_a_language_model_is_no_reward_model(tiny_model, tmp_path, sqlite_database):
    said = refusal(f"model:{tiny_model}", sqlite_database)
    assert "is not a reward model: it has no weights for score.weight" in said


def test_a_classifier_of_several_classes(tiny_model, tmp_path, sqlite_database):
    folder = tmp_path / "three"
    Qwen2ForSequenceClassification(AutoConfig.from_pretrained(tiny_model, num_labels=3)).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    assert "it has 3 outputs, not 1" in refusal(f"model:{folder}", sqlite_database)


def test_an_adapter_of_a_policy_is_no_reward_model(tiny_model, tmp_path, sqlite_database):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(task_type="CAUSAL_LM")
    )
    model.save_pretrained(tmp_path / "adapter")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "adapter")
    assert "the adapter has no score head" in refusal(f"model:{tmp_path / 'adapter'}", sqlite_database)


def test_a_template_that_cannot_show_the_protocol(reward_model, sqlite_database, tokenizer):
    scorer = RewardModel.load(reward_model)
    scorer.reader.tokenizer.chat_template = "{{ raise_exception('only two roles') }}"
    with pytest.raises(
        ConfigError, match="'judge' cannot render an observation in the role 'tool': only two"
    ):
        scorer.read_as(get_protocol("tools"), {}, "cpu")


# --- calibration --------------------------------------------------------------------------------------


def test_calibration_by_hand():
    """0.9 three times, right twice; 0.2 once, wrong. Four tasks."""
    found = calibration([0.9, 0.9, 0.9, 0.2], [True, True, False, False], ["a", "b", "c", "d"])
    assert found.accuracy[0] == 0.75
    assert found.brier[0] == pytest.approx((0.01 + 0.01 + 0.81 + 0.04) / 4)
    # the tenth from 0.9 on says 2.7 of 3 and has 2; that from 0.2 on says 0.2 of 1 and has 0
    assert found.error[0] == pytest.approx((0.7 + 0.2) / 4)
    for value, low, high in (found.accuracy, found.brier, found.error):
        assert low <= value <= high


def test_pairs_are_calibrated_by_what_is_preferred():
    """Twice the better one is preferred with odds of 3 to 1, once the worse one."""
    found = pair_calibration([math.log(3), math.log(3), -math.log(3)], ["a", "b", "c"])
    assert found.accuracy[0] == pytest.approx(2 / 3)
    assert found.brier[0] == pytest.approx((2 * 0.25**2 + 0.75**2) / 3)
    assert found.error[0] == pytest.approx(0.75 - 2 / 3)


def test_a_tie_is_half_right():
    found = pair_calibration([0.0] * 4, ["a", "b", "c", "d"])
    assert (found.accuracy[0], found.error[0], found.brier[0]) == (0.5, 0, 0.25 - 0.25)


def test_pairs_are_compared_with_a_coin():
    """The base rate of what the model itself prefers would be its own accuracy."""
    assert "(base rate alone: 0.250)" in str(pair_calibration([2.0] * 40, [str(n) for n in range(40)]))


def test_things_of_one_task_count_as_one():
    alone = calibration([0.8] * 20, [True] * 16 + [False] * 4, [str(n) for n in range(20)])
    shared = calibration([0.8] * 20, [True] * 16 + [False] * 4, ["a"] * 10 + ["b"] * 10)
    assert shared.accuracy[2] - shared.accuracy[1] > alone.accuracy[2] - alone.accuracy[1]
    assert str(alone).startswith("accuracy 80.0 % [58.4, 91.9], Brier 0.160 [")
