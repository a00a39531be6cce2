"""Folder of served episodes, laid out like a run: `run.json`, `tasks.jsonl`, `episodes.jsonl`.

A desktop client may start a server for each of its windows, all with the same folder. Several processes may
therefore write to it; each holds a lock while it writes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError, StorageError
from trl_dbbench.runs.read import read_episodes, read_tasks
from trl_dbbench.runs.records import EPISODES_FILE, TASKS_FILE, episode_record
from trl_dbbench.runs.settings import SETTINGS_FILE, RunSettings
from trl_dbbench.utils.files import whole_lines, write_through

DECIDING = ("protocol", "observation_characters", "max_turns", "dialect", "limits", "grader", "model")
"""Settings that all episodes of a folder must share. `model` keeps them apart from runs of trained models."""


class Folder:
    """Folder to add episodes to: new, empty, or with the same settings. Thread-safe.

    `played` holds the digests of the tasks that already had an episode when the folder was opened, not
    counting void episodes.
    """

    def __init__(self, path: Path, settings: RunSettings) -> None:
        self._episodes, self._tasks = path / EPISODES_FILE, path / TASKS_FILE
        try:
            path.mkdir(parents=True, exist_ok=True)
            settings_file, begun = path / SETTINGS_FILE, self._episodes.exists()
            with self._alone():
                if settings_file.exists():
                    _check_same(path, RunSettings.of_file(settings_file), settings)
                elif any(file != self._episodes or file.stat().st_size for file in path.iterdir()):
                    if not begun:
                        self._episodes.unlink()
                    raise ConfigError(f"'{path}' holds something else. Name a new folder by --save.")
                else:
                    settings.write(path)
                self._tasks.touch()
                for file in (self._tasks, self._episodes):
                    whole_lines(file, cut=True)
        except OSError as error:
            raise ConfigError(
                f"'{path}' cannot be written: {error}. Name another folder by --save."
            ) from None
        self._known = {task.digest for task in read_tasks(self._tasks, [])}
        records = [record for _, record in read_episodes(self._episodes, [])]
        self.played = {
            record.get("task_digest") for record in records if record["status"] != Status.ENVIRONMENT_FAULT
        }

    def add(self, episode: Episode) -> None:
        """Add an episode, and its task if the folder lacks it; raise StorageError if that fails."""
        line = json.dumps(episode_record(episode, "eval", 0), ensure_ascii=False)
        try:
            with self._alone():
                if episode.task.digest not in self._known:
                    _append(self._tasks, f"{episode.task.to_json()}\n")
                    self._known.add(episode.task.digest)
                _append(self._episodes, f"{line}\n")
            write_through(self._episodes)
        except OSError as error:
            raise StorageError(
                f"an episode of task '{episode.task.id}' cannot be saved: {error}. Make room in "
                f"'{self._episodes.parent}', or name another folder by --save."
            ) from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold an exclusive lock on the folder, through its file of episodes."""
        with self._episodes.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _append(path: Path, line: str) -> None:
    """Append a line, or nothing of it if the disk is full: half a line would spoil the next one."""
    size = path.stat().st_size
    try:
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line)
    except OSError:
        os.truncate(path, size)
        raise


def _check_same(path: Path, before: RunSettings, now: RunSettings) -> None:
    differing = [name for name in DECIDING if getattr(before, name) != getattr(now, name)]
    if differing:
        were = ", ".join(f"{name} {getattr(before, name)}" for name in differing)
        raise ConfigError(
            f"'{path}' holds episodes of other settings: {were}. Give the same ones, or name a new folder by "
            "--save."
        )
