"""Adapters after their training: merged into a model, trained further, and told from models."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import QUICKSTART, RECIPE, ROOT, run_here
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from training import LORA, adapter_of, equal, make_trainer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from trl_dbbench import ConfigError, DBBenchGRPOTrainer
from trl_dbbench.evaluation.compare.play import _loaded
from trl_dbbench.evaluation.evaluate import open_model
from trl_dbbench.evaluation.merge import merge
from trl_dbbench.evaluation.report.page import write_report
from trl_dbbench.evaluation.report.run import read_run
from trl_dbbench.runs.adapters import adapter_settings, check_is_model, load_base, with_adapter
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.training.memory import Sizes

MODEL = ROOT / "recipes" / "tiny" / "model"
OTHER = ROOT / "recipes" / "tiny_multi" / "model"

# limits that are no option's default, and a learning rate that changes what the model writes
OPTIONS = {
    "max_steps": 2,
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "eval_strategy": "no",
    "eval_on_start": "false",
    "max_turns": 2,
    "observation_characters": 60,
    "learning_rate": 0.02,
    "reward_funcs": "training.varied",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runs") / "lora"
    with pytest.MonkeyPatch.context() as patch:
        options = (f"--{name}={value}" for name, value in {**OPTIONS, "output_dir": folder}.items())
        run_here(patch, RECIPE, "--config", QUICKSTART, *options)
    yield folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "test.jsonl"
    path.write_text("".join((ROOT / "recipes/tiny/test.jsonl").read_text().splitlines(keepends=True)[:24]))
    return path


def answers(command, folder: Path, *arguments: object) -> dict[str, Any]:
    """Task -> every turn, how it ended and whether it was right, of `trl-dbbench eval`."""
    assert command("eval", *arguments, "--json", folder / "figures.json")[0] == 0
    episodes = json.loads((folder / "figures.json").read_text())["episodes"]
    return {e["task_id"]: ([turn["text"] for turn in e["turns"]], e["status"], e["right"]) for e in episodes}


# --- merge ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_merged_model_answers_as_its_adapter(run, tasks, command, tmp_path):
    """Every turn of 24 episodes, with the run's system prompt, template and limits, from the merged folder alone."""
    wanted = answers(command, tmp_path, "--adapter", run, "--tasks", tasks)
    code, out = command("merge", "--adapter", run, "--out", tmp_path / "merged")
    assert code in (0, None)
    assert out.startswith(
        f"The merged model is in {tmp_path / 'merged'}. On 3 prompts its logits differ from those of"
    )
    assert answers(command, tmp_path, "--model", tmp_path / "merged", "--tasks", tasks) == wanted
    base = answers(
        command,
        tmp_path,
        "--model",
        MODEL,
        "--tasks",
        tasks,
        "--system-prompt",
        "Work on the MySQL database.",
    )
    assert base != wanted

    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors", "run.json"),
        *("chat_template.jinja", "tokenizer.json", "tokenizer_config.json"),
    }
    settings = RunSettings.of_file(tmp_path / "merged" / "run.json")
    assert (settings.model, settings.max_turns) == (str(tmp_path / "merged"), 2)
    code, _ = command("eval", "--model", tmp_path / "merged")
    assert "has no held-out evaluation whose tasks could be played. Name some by --tasks." in str(code)


def test_what_is_proved_of_it(run, tmp_path):
    """Float32 leaves the sixth digit, bfloat16 the second; the adapter's own effect is larger than both."""
    merged = merge(find_trained(adapter=str(run)), tmp_path / "float32")
    assert merged.difference < 1e-4 * merged.scale < merged.effect
    rounded = merge(find_trained(adapter=str(run), dtype="bfloat16"), tmp_path / "bfloat16")
    assert merged.difference < rounded.difference < rounded.effect
    assert rounded.dtype == torch.bfloat16
    weights = load_file(tmp_path / "bfloat16" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "trained", [{"modules_to_save": ["lm_head"]}, {"target_modules": ["q_proj", "lm_head"]}], ids=str
)
def test_an_output_layer_that_shared_the_weights_of_the_embeddings(tmp_path, trained):
    """It has weights of its own in the merged model: those of the embeddings were not trained."""
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    assert base.config.tie_word_embeddings
    embeddings = base.get_input_embeddings().weight.detach().clone()
    model = get_peft_model(base, LoraConfig(r=4, **{"target_modules": ["q_proj"], **trained}))
    for weight in (weight for weight in model.parameters() if weight.requires_grad):
        weight.data += 0.1 * torch.randn_like(weight)
    model.save_pretrained(tmp_path / "adapter")
    merged = merge(find_trained(adapter=str(tmp_path / "adapter"), dtype="float32"), tmp_path / "merged")
    assert merged.difference < 1e-4 * merged.scale < merged.effect
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.equal(loaded.get_input_embeddings().weight, embeddings)
    assert not torch.equal(loaded.get_output_embeddings().weight, embeddings)


def test_a_merge_into_a_folder_that_is_there_and_empty(run, tmp_path, monkeypatch):
    """Such as a mounted one, which nothing can replace: here the working directory, and a link to a folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    monkeypatch.chdir(tmp_path / "here")
    trained = find_trained(adapter=str(run))
    for out in (Path(), tmp_path / "link"):
        merge(trained, out)
        assert {"config.json", "model.safetensors", "run.json"} <= {path.name for path in out.iterdir()}
        assert not [path for path in out.iterdir() if path.is_dir()]


def test_a_model_with_code_of_its_own(tasks, command, tmp_path, monkeypatch):
    """Its code is run only where that is asked for; the merged model has a copy of it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = shutil.copytree(MODEL, tmp_path / "model")
    (model / "mine.py").write_text(
        "from transformers import Qwen2Config, Qwen2ForCausalLM\n"
        "class MyConfig(Qwen2Config):\n    model_type = 'mine'\n"
        "class MyModel(Qwen2ForCausalLM):\n    config_class = MyConfig\n"
    )
    own = {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.MyModel"}
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "mine", "architectures": ["MyModel"], "auto_map": own}
    (model / "config.json").write_text(json.dumps(config))
    base = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=True)
    get_peft_model(base, LoraConfig(**LORA)).save_pretrained(tmp_path / "adapter")

    def both(*words: object) -> None:
        assert "trust_remote_code" in str(command(*words)[0])
        assert command(*words, "--trust-remote-code")[0] == 0

    played = ("--tasks", tasks, "--limit", 2, "--database", "sqlite")
    both("eval", "--model", model, *played)
    both("merge", "--adapter", tmp_path / "adapter", "--out", tmp_path / "merged")
    both("eval", "--model", tmp_path / "merged", *played)
    recipes = ROOT / "recipes"
    trained = (
        "--model_name_or_path",
        model,
        "--tasks",
        tasks,
        "--max_steps",
        1,
        "--output_dir",
        tmp_path / "sft",
    )
    sft = ("--config", recipes / "sft_gold.yaml", *trained, "--trust_remote_code", "true")
    run_here(monkeypatch, recipes / "sft_dbbench.py", *sft)
    assert (tmp_path / "sft" / "model.safetensors").exists()


SIZES = {"hidden_size": 16, "intermediate_size": 32}
TEXT = {**SIZES, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}


def mistral3(words: int) -> PreTrainedModel:
    """A model that `AutoModelForCausalLM` cannot load: it has no class for this config."""
    text = MistralConfig(**TEXT, vocab_size=words)
    vision = PixtralVisionConfig(**SIZES, num_hidden_layers=1, num_attention_heads=2)
    return Mistral3ForConditionalGeneration(Mistral3Config(text_config=text, vision_config=vision))


def qwen3_5(words: int) -> PreTrainedModel:
    """A model that `AutoModelForCausalLM` loads as another class, whose layers have other names."""
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    text = {
        **TEXT,
        **linear,
        "linear_num_value_heads": 2,
        "layer_types": ["linear_attention", "full_attention"],
    }
    vision = {**SIZES, "depth": 1, "num_heads": 2, "out_hidden_size": 16, "num_position_embeddings": 16}
    config = Qwen3_5Config(text_config={**text, "vocab_size": words}, vision_config=vision)
    return Qwen3_5ForConditionalGeneration(config)


@pytest.mark.parametrize("build", [mistral3, qwen3_5])
def test_a_model_with_vision(tmp_path, build):
    """It is evaluated and merged as it was trained: of the class that its config names."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    base = build(len(tokenizer))
    base.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    lora = LoraConfig(r=4, target_modules=r".*language_model.*q_proj", init_lora_weights=False)
    model = get_peft_model(load_base(str(tmp_path / "model"), dtype="float32"), lora)
    model.save_pretrained(tmp_path / "adapter")
    trained = find_trained(adapter=str(tmp_path / "adapter"), dtype="float32")
    ids = torch.arange(5, 25)[None]
    _, policy = open_model(trained)
    assert torch.equal(policy.model(ids).logits, model.eval()(ids).logits)
    merged = merge(trained, tmp_path / "merged")
    assert merged.difference < 1e-4 * merged.scale < merged.effect
    assert Sizes.of(base.config, None).parameters == sum(each.numel() for each in base.parameters())


def test_an_adapter_whose_layers_have_other_names(run, tmp_path):
    """PEFT would leave them out, and the base model would play alone."""
    shutil.copytree(run, tmp_path / "adapter", ignore=shutil.ignore_patterns("checkpoint-*"))
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(file)
    save_file({name.replace("self_attn", "attention"): weight for name, weight in weights.items()}, file)
    for load in (
        lambda: with_adapter(AutoModelForCausalLM.from_pretrained(MODEL), str(tmp_path / "adapter")),
        lambda: open_model(find_trained(adapter=str(tmp_path / "adapter"))),
    ):
        with pytest.raises(ConfigError, match=r"does not fit the model .*: Found missing adapter keys"):
            load()
    first, second = (find_trained(adapter=str(each)) for each in (run, tmp_path / "adapter"))
    _, policy = open_model(first)
    with pytest.raises(ConfigError, match=r"cannot be put on .*: it has no weights for base_model"):
        _loaded(policy.model, [first, second])


def test_a_merge_that_changes_the_answers_leaves_nothing(run, tmp_path, monkeypatch):
    """As if PEFT forgot the adapter."""
    monkeypatch.setattr(PeftModel, "merge_and_unload", lambda self, **kwargs: self.unload(), raising=False)
    with pytest.raises(ConfigError, match=r"the merged model's logits differ .* Nothing was written\."):
        merge(find_trained(adapter=str(run)), tmp_path / "merged")
    assert list(tmp_path.iterdir()) == []


def changed(run: Path, copy: Path, **config: object) -> Path:
    """A copy of a run whose adapter_config.json says something else."""
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoint-*"))
    file = copy / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return copy


def test_what_cannot_be_merged(run, command, tmp_path):
    def told(*arguments: object) -> str:
        code, _ = command("merge", "--out", tmp_path / "merged", *arguments)
        assert not (tmp_path / "merged").exists()
        return str(code)

    wrong = shutil.copytree(MODEL, tmp_path / "qwen-other")
    assert told("--adapter", run, "--model", wrong) == (
        f"error: the adapter '{run}' was trained on '{MODEL}', and --model names '{wrong}'. An adapter "
        "fits only the weights that it was trained on: leave --model out, or name a copy of that model, in a folder "
        "'model'."
    )
    said = told("--adapter", run, "--model", OTHER)  # a folder of the same name, with layers of another width
    assert said.startswith(
        f"error: the adapter '{run}' does not fit the model '{OTHER}'; it was trained on '{ROOT}"
    )
    assert "size mismatch" in said and "\n" not in said

    few_bits = changed(run, tmp_path / "few-bits")
    settings = json.loads((run / "run.json").read_text())
    (few_bits / "run.json").write_text(json.dumps(settings | {"quantized": {"quant_method": "bitsandbytes"}}))
    assert told("--adapter", few_bits).startswith(
        f"error: '{few_bits}' was trained on quantised weights (bitsandbytes) of '{MODEL}'. Merged into them it"
    )

    resized = changed(run, tmp_path / "resized")
    weights = load_file(run / "adapter_model.safetensors")
    rows, width = AutoModelForCausalLM.from_pretrained(MODEL).get_input_embeddings().weight.shape
    weights["base_model.model.model.embed_tokens.weight"] = torch.zeros(rows + 1, width)
    save_file(weights, resized / "adapter_model.safetensors")
    assert "size mismatch for base_model.model.model.embed_tokens" in told("--adapter", resized)

    assert "has all weights of a model and no adapter" in told("--adapter", MODEL)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").touch()
    code, _ = command("merge", "--adapter", run, "--out", tmp_path / "taken")
    assert str(code) == f"error: '{tmp_path / 'taken'}' is there already. Give --out a folder that is not."


# --- trained further ------------------------------------------------------------------------------


def test_a_training_starts_from_an_adapter(run, tmp_path, monkeypatch):
    """With learning rate 0 it ends as it began; the recipe's own lora_* settings agree with the adapter's."""
    options = {**OPTIONS, "learning_rate": 0.0, "output_dir": tmp_path / "more", "adapter_name_or_path": run}
    given = [f"--{name}={value}" for name, value in options.items()]
    run_here(monkeypatch, RECIPE, "--config", QUICKSTART, *given)
    weights = [load_file(each / "adapter_model.safetensors") for each in (run, tmp_path / "more")]
    assert equal(*weights)
    assert RunSettings.read(tmp_path / "more").model == RunSettings.read(run).model
    assert f"| started from | `{run}` |" in (tmp_path / "more" / "README.md").read_text()
    page = write_report(read_run(tmp_path / "more"), tmp_path / "report.html").read_text()
    assert f"trained on from {run}" in page


@pytest.fixture
def start_of(tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch):
    """`start_of(name, ...)`: a trainer that goes on from an adapter of LORA's shape, saved in `tmp_path / "first"`."""
    monkeypatch.setitem(LORA, "lora_dropout", 0.0)  # so that two equal policies have a KL of 0
    first = make_trainer(tiny_model, sqlite_database, demo_tasks, tmp_path / "zero")
    for number, (name, weight) in enumerate(first.model.named_parameters()):
        if "lora" in name:
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(number))
    first.model.save_pretrained(tmp_path / "first")

    def start(name: str, lora: bool = False, **settings: object) -> DBBenchGRPOTrainer:
        settings = {"adapter_name_or_path": str(tmp_path / "first"), **settings}
        return make_trainer(tiny_model, sqlite_database, demo_tasks, tmp_path / name, lora=lora, **settings)

    start.first = adapter_of(first)
    return start


def test_the_kl_is_to_the_adapter_as_it_was(start_of, tmp_path):
    """TRL keeps a copy of it, "ref". A resumed run has the same copy."""
    trainer = start_of("run", beta=0.1, max_steps=3, save_strategy="steps", save_steps=1)
    trainer.train()
    began = start_of.first
    now = adapter_of(trainer)
    copies = {name.replace(".ref.", ".default."): weight for name, weight in now.items() if ".ref." in name}
    assert equal(copies, began)
    trained = {name: weight for name, weight in now.items() if ".default." in name}
    assert not equal(trained, began)
    kl = [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]
    assert kl[0] == pytest.approx(0, abs=1e-6) and kl[-1] > 1e-6

    shutil.copytree(tmp_path / "run" / "checkpoint-1", tmp_path / "again" / "checkpoint-1")
    resumed = start_of("again", beta=0.1, max_steps=3, save_strategy="steps", save_steps=1)
    resumed.train(resume_from_checkpoint=True)
    assert equal(adapter_of(resumed), now)


@pytest.mark.parametrize(
    ("setting", "given", "said"),
    [
        ("r", 8, "r is 8 in the settings and 4"),
        ("modules_to_save", ["lm_head"], r"modules_to_save is \['lm_head'\]"),
    ],
)
def test_settings_of_another_shape_are_refused(start_of, monkeypatch, setting, given, said):
    """They would have no effect: the whole output layer, say, would not be trained."""
    monkeypatch.setitem(LORA, setting, given)
    message = rf"an adapter keeps its shape, and '.*first' has another .*: {said}.* in the adapter\."
    with pytest.raises(ConfigError, match=message):
        start_of("run", lora=True)


def test_an_adapter_of_another_model_is_refused(run, start_of):
    with pytest.raises(
        ConfigError, match=rf"the adapter '{run}' does not fit the model '.*'; it was trained on"
    ):
        start_of("run", adapter_name_or_path=str(run))
    with pytest.raises(ConfigError, match="adapter_name_or_path: '/nowhere' is not an adapter: "):
        start_of("run", adapter_name_or_path="/nowhere")


def test_damaged_weights_are_refused(monkeypatch, tmp_path):
    """A copy or a download that was broken off, and an adapter of another version of PEFT."""

    def cut(file: Path) -> None:
        os.truncate(file, file.stat().st_size // 2)

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL), LoraConfig(target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "short")
    strange = shutil.copytree(tmp_path / "short", tmp_path / "strange") / "adapter_config.json"
    strange.write_text(json.dumps(json.loads(strange.read_text()) | {"peft_type": "NEW"}))
    cut(tmp_path / "short" / "adapter_model.safetensors")
    cut(shutil.copytree(MODEL, tmp_path / "model") / "model.safetensors")
    damaged, unknown = (
        "cannot be loaded: a file of weights is damaged or cut short",
        "'NEW' is missing or unknown",
    )

    with pytest.raises(ConfigError, match=f"the model '.*/model' {damaged}"):
        open_model(find_trained(model=str(tmp_path / "model")))
    for name, why in (("short", damaged), ("strange", f"cannot be loaded: {unknown}")):
        adapter = str(tmp_path / name)
        with pytest.raises(ConfigError, match=f"the model '{MODEL}' with the adapter '{adapter}' {why}"):
            open_model(find_trained(model=str(MODEL), adapter=adapter))
        with pytest.raises(ConfigError, match=f"the adapter '{adapter}' {why}"):
            with_adapter(AutoModelForCausalLM.from_pretrained(MODEL), adapter)
    with pytest.raises(ConfigError, match=f"'{adapter}' is not an adapter: {unknown}"):
        adapter_settings(adapter, None)
    options = ("--model_name_or_path", tmp_path / "model", "--output_dir", tmp_path / "out")
    with pytest.raises(SystemExit, match=r"^error: a file of weights is damaged or cut short"):
        run_here(monkeypatch, RECIPE, "--config", QUICKSTART, *options)


def test_an_adapter_on_another_model_of_the_same_shape_is_told(run, tmp_path, caplog):
    other = str(shutil.copytree(MODEL, tmp_path / "other"))
    for load in (
        lambda: with_adapter(AutoModelForCausalLM.from_pretrained(other), str(run)),
        lambda: open_model(find_trained(model=other, adapter=str(run))),
    ):
        caplog.clear()
        load()
        assert (
            f"the adapter '{run}' was trained on " in caplog.text and f" is used on '{other}'" in caplog.text
        )
    caplog.clear()
    open_model(find_trained(run=run))
    assert "was trained on" not in caplog.text


# --- told from models -----------------------------------------------------------------------------


def test_an_adapter_that_is_named_as_a_model(run, tasks, command, monkeypatch, tmp_path):
    check_is_model(str(MODEL))
    says = f"'{run}' is an adapter (on '{MODEL}'), not a model."
    merged = f"make a model of it: trl-dbbench merge --adapter {run} --out MODEL."
    with pytest.raises(SystemExit) as ended:
        run_here(
            monkeypatch, RECIPE, "--config", QUICKSTART, "--model_name_or_path", run, "--output_dir", tmp_path
        )
    assert str(ended.value) == (
        f"error: model_name_or_path: {says} To train it further set model_name_or_path: {MODEL} and "
        f"adapter_name_or_path: {run}, or {merged}"
    )
    code, _ = command("eval", "--model", run, "--tasks", tasks)
    assert str(code) == f"error: --model: {says} Evaluate it by --adapter {run}, or {merged}"
