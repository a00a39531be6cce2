"""A disk that fills up under a run: it ends with what to do, and goes on as if nothing had been."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from training import adapter_of, equal, make_trainer

from trl_dbbench.errors import StorageError
from trl_dbbench.utils.files import write_atomically


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a model may still be mapped


def fill(disk: Path) -> Path:
    """Takes all that is free."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for block in (1 << 20, 1):
            try:
                while file.write(b"x" * block):
                    pass
            except OSError:
                continue
    return ballast


SETTINGS = {"protocol": "text", "max_steps": 3, "save_strategy": "steps", "save_steps": 1}
SETTINGS |= {"num_iterations": 2, "num_generations": 2, "per_device_train_batch_size": 2}


@pytest.fixture(scope="module")
def unbroken(tiny_model, sqlite_database, demo_tasks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], folder, **SETTINGS)
    trainer.train()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "step", "place"),
    [
        ("_save_checkpoint", 2, "checkpoint-1"),
        ("save_model", 2, "checkpoint-1"),
        ("_save_optimizer_and_scheduler", 2, "checkpoint-1"),
        ("_save_rollouts", 1, "its beginning, as no checkpoint is whole yet"),
        ("episode_log.write", 2, "checkpoint-2"),
    ],
)
def test_a_run_whose_disk_is_full_ends_with_what_to_do(
    disk, unbroken, tiny_model, sqlite_database, demo_tasks, monkeypatch, before, step, place
):
    """Whatever is written when no space is left: a mark, weights, PyTorch's files, or the log of episodes."""
    folder = disk / "run"
    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], folder, **SETTINGS)
    owner, name = (trainer.episode_log, "write") if "." in before else (trainer, before)
    write = getattr(owner, name)

    def fill_and_write(*args, **kwargs):
        if trainer.state.global_step == step:
            fill(disk)
        return write(*args, **kwargs)

    monkeypatch.setattr(owner, name, fill_and_write)
    with pytest.raises(StorageError) as raised:
        trainer.train()
    text = str(raised.value)
    assert text.startswith(f"no space is left for the run's files: '{folder}' has 0.0 MB free, '")
    assert f", then start again with resume_from_checkpoint: true, which goes on from {place}." in text

    (disk / "ballast").unlink()
    resumed = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], folder, **SETTINGS)
    resumed.train(resume_from_checkpoint=True)
    assert equal(adapter_of(resumed), adapter_of(unbroken))


def test_a_model_that_does_not_fit_any_more(disk, unbroken, monkeypatch):
    """The final one, which is saved after the training."""
    ballast = fill(disk)
    monkeypatch.setattr(unbroken.args, "output_dir", str(disk))
    with pytest.raises(StorageError, match="goes on from its beginning, as no checkpoint is whole yet"):
        unbroken.save_model(str(disk / "model"))
    ballast.unlink()


def test_a_file_that_does_not_fit(disk):
    """As `trl-dbbench generate` and its like write one; the file that was there stays."""
    path = disk / "tasks.jsonl"
    path.write_text("as it was")
    ballast = fill(disk)
    message = f"no space is left for {path}: '{disk}' has 0.0 MB free"
    with pytest.raises(StorageError, match=message), write_atomically(path) as file:
        file.write("x" * 100_000)
    ballast.unlink()
    assert [each.name for each in disk.iterdir()] == ["tasks.jsonl"]
    assert path.read_text() == "as it was"
    path.unlink()
