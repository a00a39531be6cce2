"""Things of the user's own, by name: modules and files, and names that are misspelled."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from trl_dbbench.database import Database
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading import get_grader
from trl_dbbench.rewards.registry import describe_reward, load_reward_functions, with_step_rewards
from trl_dbbench.utils.files import check_not_misspelled, nearest_path
from trl_dbbench.utils.lookup import look_up


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """my rewards/short.py, which imports its neighbour."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    folder = tmp_path / "my rewards"
    folder.mkdir()
    (folder / "neighbour_of_short.py").write_text("WEIGHT = -0.5\n")
    (folder / "short.py").write_text(
        "from neighbour_of_short import WEIGHT\n"
        "def short(episode, **kwargs): return [WEIGHT for e in episode]\n"
        "def few(episode, **kwargs): return [1.0]\n"
        "def one(episode, **kwargs): return 1.0\n"
        "def yes(answer, gold): return True\n"
        "number = 3\n"
    )
    return folder / "short.py"


@pytest.mark.parametrize("whole", [False, True])
def test_a_function_of_a_file(mine: Path, whole: bool, sqlite_database: Database) -> None:
    name = f"{mine if whole else 'my rewards/short.py'}:short"
    (short,) = load_reward_functions([name], database=sqlite_database)
    assert short(episode=["", ""]) == [-0.5, -0.5]
    assert look_up("reward function", name, {}) is short  # the file is run once
    # what run.json says of it finds it again, from any folder
    assert describe_reward(short) == {"function": f"{mine}:short"}
    assert get_grader("my rewards/short.py:yes").judge("", [])


def test_a_function_of_a_file_can_be_handed_to_a_process(mine: Path) -> None:
    """As by an agent that runs its helpers in a `ProcessPoolExecutor`."""
    short = look_up("harness", f"{mine}:short", {})
    assert pickle.loads(pickle.dumps(short)) is short


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my rewards/shrt.py:short", "there is no file 'my rewards/shrt.py'"),
        ("my rewards/short.py:shrt", "has no attribute 'shrt'"),
        ("my rewards/short.py:number", "is not callable but int"),
        ("outcom", "such as my_module.my_name or my_file.py:my_name. Nearest: outcome."),
    ],
)
def test_names_of_nothing(mine: Path, name: str, message: str, sqlite_database: Database) -> None:
    with pytest.raises(ConfigError) as error:
        load_reward_functions([name], database=sqlite_database)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "few",
            "the reward function 'few' must return a list of 2 values, one for each episode; it returned 1 values.",
        ),
        (
            "one",
            "the reward function 'one' must return a list of 2 values, one for each episode; it returned float.",
        ),
    ],
)
def test_a_reward_of_the_wrong_length(mine: Path, name: str, message: str, sqlite_database: Database) -> None:
    (function,) = load_reward_functions([f"my rewards/short.py:{name}"], database=sqlite_database)
    with pytest.raises(ConfigError) as error:
        with_step_rewards(function)(episode=["", ""])
    assert str(error.value) == message


# --- folders and hub ids ----------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "runs" / "quickstart" / "checkpoint-20").mkdir(parents=True)
    (tmp_path / "cache" / "models--runs--known").mkdir(parents=True)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("runs/quickstrat", "runs/quickstart"),
        ("./runs/quickstrat", "runs/quickstart"),
        ("runs/quickstart/checkpoint-2", "runs/quickstart/checkpoint-20"),
        ("run/quickstart/checkpoint-20", "runs/quickstart/checkpoint-20"),
    ],
)
def test_a_misspelled_folder_is_no_hub_id(runs: None, name: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_not_misspelled(name)
    assert str(error.value) == f"{name} is not a folder; nearest: {nearest}."


def test_paths_without_anything_near(runs: None) -> None:
    assert nearest_path("elsewhere/else") is None
    with pytest.raises(ConfigError, match=r"^\./mine is not a folder, so there is no model in it\.$"):
        check_not_misspelled("./mine")


@pytest.mark.parametrize(
    "name", ["gpt2", "Qwen/Qwen2.5-7B-Instruct", "runs/quickstart", "runs/known", "runs/other"]
)
def test_hub_ids_and_folders_pass(runs: None, name: str) -> None:
    check_not_misspelled(name)
