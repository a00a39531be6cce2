"""`trl-dbbench doctor`: what it says of recipes that cannot work, and its figures against tensors that are there."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from launching import ROOT
from peft import LoraConfig
from transformers import AutoConfig, AutoTokenizer, Qwen2ForCausalLM
from typer.testing import CliRunner

from trl_dbbench.cli import app
from trl_dbbench.cli.doctor import largest_difference

TINY = ROOT / "recipes" / "tiny" / "model"


@pytest.fixture
def doctor(tmp_path, monkeypatch) -> Callable:
    """Runs the command in an empty folder; returns its exit status and what it says of each check."""
    monkeypatch.chdir(tmp_path)

    def run(recipe: object, *options: object) -> tuple[int, dict[str, str]]:
        done = CliRunner().invoke(app, ["doctor", *map(str, [recipe, *options])], catch_exceptions=False)
        lines = [line for line in done.stdout.splitlines() if line[:6].strip() in ("ok", "note", "FAIL")]
        return done.exit_code, {line[6:].partition(":")[0]: line for line in lines}

    return run


def test_the_quickstart_can_work(doctor):
    status, said = doctor("quickstart")
    assert list(said) == ["settings", "packages", "episodes", "data", "model", "database", "memory"]
    assert {line[:5] for line in said.values()} == {"ok   "}
    assert status == 0
    assert "1,000 tasks in " in said["data"] and "200 held-out tasks" in said["data"]
    assert "trl 1.16" in said["packages"]
    assert "the quickstart's model plays 4, 3 of them right; log-probabilities" in said["episodes"]
    assert "1,357,952 parameters, 188,416 of them trained" in said["memory"]


def test_versions_with_which_no_episode_can_be_played(doctor, monkeypatch):
    def forward(self, cache=None):
        """Takes no ids."""

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", forward)
    status, said = doctor("quickstart")
    assert re.match(
        "FAIL  episodes: no episode can be played with the installed versions of trl, transformers and torch: "
        "TypeError: .*forward.* got an unexpected keyword argument 'input_ids'",
        said["episodes"],
    )
    assert [check for check, line in said.items() if line.startswith("FAIL")] == ["episodes"]
    assert status == 1


def test_versions_that_compute_something_else_in_a_rollout(doctor, monkeypatch):
    """An argument has another name, and models pass over what they do not know: each sees the last token alone."""
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.cache_argument", lambda model: "renamed")
    _, said = doctor("quickstart")
    assert re.match(
        r"FAIL  episodes: .* a rollout computes something else than a training forward: log-probabilities differ by "
        r"[\d.]+, allowed is 0\.001",
        said["episodes"],
    )


def test_a_hub_that_does_not_answer_is_asked_once(doctor, monkeypatch):
    """Without a network each look-up takes half a minute."""
    asked, load = [], AutoConfig.from_pretrained

    def away(name, **kwargs):
        if name != "no/such":
            return load(name, **kwargs)
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setattr("trl_dbbench.cli.doctor.AutoConfig.from_pretrained", away)
    _, said = doctor("quickstart", "--model_name_or_path", "no/such")
    assert said["model"].startswith("note  model: 'no/such' is not on this machine")
    assert said["memory"].startswith("note  memory: what no/such needs can be told when")
    assert asked == ["no/such"]


def test_versions_outside_of_the_tried_ranges(doctor, monkeypatch):
    ranges = ["transformers <5.1,>=5.0", "no-such-package >=1", "pandas >=2", "pandas >=9; extra == 'report'"]
    monkeypatch.setattr("trl_dbbench.cli.doctor.requires", lambda name: ranges)
    _, said = doctor("quickstart", "--report_to", "trackio")
    assert said["packages"] == (
        "FAIL  packages: missing, or of a version that was not tried: transformers<5.1,>=5.0 "
        f"({version('transformers')} is installed), no-such-package>=1 (missing), trackio (missing). "
        "Install: pip install 'transformers<5.1,>=5.0' 'no-such-package>=1' 'trackio'"
    )


@pytest.mark.parametrize(
    ("options", "check", "message"),
    [
        (
            ["--learning_rat", "1"],
            "settings",
            "FAIL  settings: unknown setting 'learning_rat'; nearest: learning_rate",
        ),
        (["--num_generations", "3"], "settings", "FAIL  settings: .*must be divisible by num_generations"),
        (["--accelerator_config", '{"x": 1}'], "settings", "FAIL  settings: TypeError: .* argument 'x'"),
        (
            ["--reward_funcs", "outcome", "executed"],
            "settings",
            "FAIL  settings: unknown reward function 'executed'; allowed: .* Nearest: executes.",
        ),
        (
            ["--reward_funcs", "model:runs/rm", "mine.py:short"],
            "settings",
            "FAIL  settings: the reward function 'mine.py:short' cannot be imported: FileNotFoundError",
        ),
        (
            ["--reward_funcs", "modl:runs/rm"],
            "settings",
            "FAIL  settings: unknown reward function 'modl:runs/rm'; of those with a colon there are model:PATH",
        ),
        (["--reward_funcs", "model:"], "settings", "FAIL  settings: unknown reward function 'model:'"),
        (["--harness", ""], "settings", "FAIL  settings: harness is empty; name a function"),
        (
            ["--reward_funcs", "executes", "--outcome", '{"wrong": -1}'],
            "settings",
            "FAIL  settings: outcome sets values of the reward 'outcome', but reward_funcs are executes.",
        ),
        (
            ["--harness", "nofile.py:foo"],
            "settings",
            "FAIL  settings: the harness 'nofile.py:foo' cannot be started: .* there is no file 'nofile.py'. Write",
        ),
        (
            ["--harness", "no_such_module.foo"],
            "settings",
            "FAIL  settings: the harness 'no_such_module.foo' cannot be started: .* No module named .* Write module.name",
        ),
        (
            ["--harness", "agent.py:walk"],
            "settings",
            "FAIL  settings: the harness 'agent.py:walk' cannot be started: .* has no attribute 'walk'. Write",
        ),
        (
            ["--harness", "agent.walk"],
            "settings",
            "FAIL  settings: the harness 'agent.walk' cannot be started: .* has no attribute 'walk'. Write",
        ),
        (
            ["--harness", "no-such-shell my_agent.sh"],
            "settings",
            "FAIL  settings: the harness 'no-such-shell my_agent.sh' cannot be started: "
            "there is no program 'no-such-shell'. Name one, or a function",
        ),
        (
            ["--load_in_4bit", "true"],
            "packages",
            "FAIL  packages: missing, .*: bitsandbytes .missing.. Install: pip",
        ),
        (
            ["--use_vllm", "true", "--load_in_4bit", "true"],
            "packages",
            "FAIL  packages: missing, .*: bitsandbytes .missing., vllm .missing., vllm-bnb-plugin .missing.",
        ),
        (
            ["--use_liger_kernel", "true"],
            "packages",
            "FAIL  packages: missing, .*: liger-kernel .missing.. Install: pip",
        ),
        (
            ["--report_to", "trackio"],
            "packages",
            "FAIL  packages: missing, .*: trackio .missing.. Install: pip",
        ),
        (["--tasks", "no.jsonl"], "data", "FAIL  data: no task file at 'no.jsonl'"),
        (["--model_name_or_path", "my model"], "model", "FAIL  model: .* is neither a folder nor a hub id"),
        (["--model_name_or_path", "."], "model", "FAIL  model: .* the folder '.' holds no model"),
        (
            ["--model_name_or_path", "adapter"],
            "model",
            "FAIL  model: .* 'adapter' is an adapter .*, not a model",
        ),
        (["--model_name_or_path", "bare"], "model", "FAIL  model: .* has no chat template"),
        (["--model_name_or_path", "no/such"], "model", "note  model: 'no/such' is not on this machine"),
        (
            ["--database", "mysql+pymysql://root@127.0.0.1:9/"],
            "database",
            "FAIL  database: .*127.0.0.1:9",
        ),
        (["--database", "docker"], "database", "FAIL  database: Docker does not answer"),
        (
            ["--max_completion_length", "9000000"],
            "memory",
            "FAIL  memory: .*need about .* GB on each rank .*Less is needed with a smaller max_tokens_per_forward",
        ),
        (
            ["--use_cpu", "false", "--num-processes", "99"],
            "memory",
            r"FAIL  memory: .* need about .*The recipe wants 99 GPUs, PyTorch sees \w+\.",
        ),
    ],
)
def test_what_cannot_work(doctor, tmp_path, monkeypatch, options, check, message):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if check == "packages":
        monkeypatch.setattr("trl_dbbench.cli.doctor.find_spec", lambda name: None)
    if options[-1] == "adapter":
        Path("adapter").mkdir()
        (Path("adapter") / "adapter_config.json").write_text("{}")
    if "--harness" in options:
        Path("agent.py").write_text("def run(task): ...")
    if options[-1] == "bare":
        shutil.copytree(TINY, "bare", ignore=shutil.ignore_patterns("*.jinja"))
    status, said = doctor("quickstart", *options)
    assert re.match(message, said[check]), said[check]
    assert status == int("FAIL" in said[check])
    if check == "data":
        assert list(said)[-1] == "memory", "the other checks are made all the same"


@pytest.mark.parametrize("harness", ["agent.py:run", "agent.run", "sh agent.sh"])
def test_a_harness_is_imported_once_and_by_another_process(doctor, harness):
    Path("agent.py").write_text(
        "import os\nopen('imported', 'a').write(f'{os.getpid()} ')\ndef run(task): raise SystemExit"
    )
    status, said = doctor("quickstart", "--harness", harness)
    assert (status, said["settings"][:5]) == (0, "ok   "), said
    if harness != "sh agent.sh":
        (process,) = Path("imported").read_text().split()
        assert int(process) != os.getpid()


def test_an_adapter_of_another_shape_than_the_settings(doctor, tmp_path):
    """TRL's lora_dropout is 0.05 where nothing says it, and a training would refuse the adapter."""
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=modules).save_pretrained(
        tmp_path / "adapter"
    )
    shape = ["--lora_r", 16, "--lora_alpha", 32, "--lora_target_modules", *modules]
    given = ["--adapter_name_or_path", tmp_path / "adapter", *shape]
    _, said = doctor("quickstart", *given)
    assert said["model"].startswith("FAIL  model: adapter_name_or_path: an adapter keeps its shape")
    assert "lora_dropout is 0.05 in the settings and 0.0 in the adapter" in said["model"]
    status, said = doctor("quickstart", *given, "--lora_dropout", 0)
    assert said["model"].startswith("ok") and status == 0
    _, said = doctor("quickstart", "--adapter_name_or_path", tmp_path)
    assert said["model"].startswith("FAIL") and "is not an adapter" in said["model"]


def test_both_places_of_a_path(doctor, tmp_path):
    recipe = tmp_path / "sub" / "my.yaml"
    recipe.parent.mkdir()
    recipe.write_text("tasks: no.jsonl\nuse_cpu: true\nbf16: false\n")
    status, said = doctor(recipe)
    assert said["data"].endswith(
        f"working directory, {tmp_path}, nor from the YAML's folder, {recipe.parent}."
    )
    assert status == 1


def test_tasks_without_end(doctor):
    status, said = doctor("quickstart", "--tasks", "generate://plain?seed=3")
    assert said["data"].startswith("ok    data: tasks without end, generate://plain?seed=3, 200 held-out")
    assert status == 0
    for more, why in (
        ("--tasks_split=test", "tasks_split: generate://plain has no splits."),
        ("--eval_tasks=generate://plain", "no task file at 'generate://plain'."),
    ):
        status, said = doctor("quickstart", "--tasks", "generate://plain", more)
        assert said["data"].startswith(f"FAIL  data: {why}") and status == 1


def test_memory_is_that_of_the_prompts_that_are_trained(doctor, tmp_path):
    """A system prompt in a file, and tables shown in the prompt."""
    (tmp_path / "long.md").write_text("Look at the tables first. " * 2_000)

    def memory(*options: object) -> float:
        return float(re.search(r"need about ([\d.]+) GB", doctor("quickstart", *options)[1]["memory"])[1])

    usual = memory()
    assert memory("--system_prompt", tmp_path / "long.md") > usual
    _, said = doctor("quickstart", "--system_prompt", "no.md")
    assert said["memory"].startswith("FAIL") and "no.md" in said["memory"]


def test_memory_counts_the_earlier_episodes_that_prompts_show(doctor, tmp_path):
    tasks = [json.loads(line) for line in (TINY.parent / "train.jsonl").read_text().splitlines()[:3]]
    head = {"phase": "train", "step": 0, "status": "answered", "right": True}
    head["turns"] = [{"text": "Action: Answer\nFinal Answer: [(1,)]"}]
    lines = [head | {"task_id": task["id"], "task": task} for task in tasks]
    (tmp_path / "memory.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def memory(*options: object) -> float:
        said = doctor("quickstart", "--max_completion_length", 256, *options)[1]
        assert "3 episodes to show in memory.jsonl" in said["data"] or "memory.jsonl" not in options
        return float(re.search(r"need about ([\d.]+) GB", said["memory"])[1])

    usual = memory()
    assert memory("--few_shot", 3, "--few_shot_memory", "memory.jsonl") > usual
    assert memory("--few_shot", 3, "--few_shot_update", "true") > usual
    _, said = doctor("quickstart", "--few_shot", 3, "--few_shot_memory", "no.jsonl")
    assert said["data"].startswith("FAIL") and "'no.jsonl' is not there" in said["data"]


def test_memory_of_a_model_that_is_quantized_on_disk(doctor, tmp_path):
    def memory(name: str, **quantized: object) -> str:
        config = AutoConfig.from_pretrained(TINY)
        config.quantization_config = quantized
        config.save_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(TINY).save_pretrained(tmp_path / name)
        return doctor("quickstart", "--model_name_or_path", tmp_path / name)[1]["memory"]

    assert "need about" in memory("known", quant_method="bitsandbytes", load_in_4bit=True)
    assert memory("unknown", quant_method="hqq").endswith(
        "cannot be told: the model is quantized by hqq, which does not say to how many bits"
    )


def test_a_file_of_pairs_alone(doctor, tmp_path):
    (tmp_path / "my.jsonl").write_text("{}")
    recipe = tmp_path / "rm.yaml"
    recipe.write_text(
        f"recipe: rm\nmodel_name_or_path: {TINY}\npairs: my.jsonl\nuse_cpu: true\nbf16: false\n"
    )
    assert doctor(recipe)[1]["data"] == "ok    data: pairs in my.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_quickstart", "sft_episodes", "rm_quickstart", "prm_quickstart"])
def test_recipes_of_other_kinds(doctor, name):
    """All they lack in an empty folder is the run that they learn from."""
    status, said = doctor(name)
    failed = [check for check, line in said.items() if line.startswith("FAIL")]
    assert failed == ([] if name == "ppo_quickstart" else ["data"])
    assert status == len(failed)


# --- memory ---------------------------------------------------------------------------------------


def test_what_is_bounded_by_memory(doctor, monkeypatch):
    """8,192 episodes of the quickstart's model on a machine of 1.5 GB."""
    monkeypatch.setattr("trl_dbbench.cli.doctor.total_memory", lambda device: 1.5e9)
    options = ["--per_device_train_batch_size", "8192", "--max_completion_length", "400"]
    _, said = doctor("quickstart", *options)
    found = re.search(
        r"need about ([\d.]+) GB .* ([\d,]+) of 9,216 episodes play at a time; ([\d,]+) of ([\d,]+) tokens go "
        r"through the model together\), of 1\.5 GB",
        said["memory"],
    )
    assert found, said["memory"]
    assert float(found[1]) <= 1.5
    for few, many in ((found[2], "9,216"), (found[3], found[4])):
        assert 1 < int(few.replace(",", "")) < int(many.replace(",", ""))


def test_a_dtype_that_is_none_is_one_finding_among_others(doctor, tmp_path):
    recipe = (ROOT / "recipes" / "quickstart.yaml").read_text().replace("dtype: float32", "dtype: bf16")
    (tmp_path / "mine.yaml").write_text(recipe)
    status, said = doctor("mine.yaml")
    assert status == 1
    assert "unknown dtype 'bf16'" in said["settings"]
    assert "database" in said


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True])
def test_bfloat16_on_a_cpu(doctor, monkeypatch, there):
    """It is computed several times slower than float32 where the CPU has no instructions for it."""
    monkeypatch.setattr(
        "torch.cpu.get_capabilities", lambda: {"architecture": "x86_64", "avx512_bf16": there}
    )
    status, said = doctor("quickstart", "--dtype", "bfloat16")
    assert status == 0
    assert ("no instructions for bfloat16: --dtype float32" in said["model"]) is not there
    assert "no instructions" not in doctor("quickstart", "--dtype", "float32")[1]["model"]


def test_log_probabilities_that_are_nan_differ(tmp_path):
    model = Qwen2ForCausalLM(AutoConfig.from_pretrained(TINY))
    played = SimpleNamespace(prompt_ids=[5, 6], completion_ids=[7, 8], mask=[1, 1], logprobs=[-1.0, math.nan])
    assert math.isnan(largest_difference(model, [played]))


def test_a_model_without_a_tokenizer_is_a_finding(doctor, tmp_path):
    shutil.copytree(TINY, tmp_path / "model", ignore=shutil.ignore_patterns("*token*", "*.jinja"))
    status, said = doctor("quickstart", "--model_name_or_path", tmp_path / "model")
    assert status == 1 and said["model"].startswith("FAIL") and "memory" in said
