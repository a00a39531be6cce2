"""Journal of an evaluation: each episode is saved when it ends, so that a stopped evaluation can resume.

```
eval.json.partial    exists while `eval --json eval.json` plays, and is removed at the end
  {"asked": {...}}                                 settings that decide which episodes are played, and how
  {"part": "greedy", "place": 0, "record": {...}}  an episode, and its place in the playing order
```

Episodes whose environment failed are played again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.records import EpisodeRecord, checked_record, is_void
from trl_dbbench.utils.files import is_stream, locks, telling_of_no_space, whole_lines

GREEDY, SAMPLES = "greedy", "samples"
"""The parts of an evaluation."""


class Journal:
    """Episodes that an evaluation has played, now and before a resume.

    Args:
        path: the file; `None` keeps the episodes in memory only.
        asked: the settings that determine the episodes, as JSON.

    Attributes:
        shots: memory lines of the earlier episodes that prompts showed, by id.
        earlier: the entries from before a resume.
    """

    def __init__(self, path: Path | None = None, asked: Mapping[str, Any] | None = None):
        self.path = path
        self.asked = json.loads(json.dumps(asked or {}))
        self.shots: dict[str, str] = {}
        self.earlier: list[dict[str, Any]] = []
        self._records: dict[str, dict[int, EpisodeRecord]] = {GREEDY: {}, SAMPLES: {}}
        self._begun = False
        self._file: IO[str] | None = None

    def read(self) -> None:
        """Load the episodes of a stopped evaluation; raise ConfigError if it had other settings."""
        assert self.path is not None
        try:
            lines = [*filter(None, whole_lines(self.path, cut=True))]
            if not lines:  # killed while writing the first line
                return
            head, *entries = map(json.loads, lines)
            before = head["asked"]
            for entry in entries:
                self.shots |= entry.get("shots", {})
                self._records[entry["part"]][entry["place"]] = checked_record(entry["record"])
                self.earlier.append(entry)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"'{self.path}' cannot be read: {error}. Remove it, and the evaluation starts anew."
            ) from None
        if others := other_settings(before, self.asked):
            raise ConfigError(
                f"--resume: '{self.path}' was begun with other settings: {others}. Give these to go on with "
                "it, or name another file by --json."
            )
        self._begun = True

    def done(self, part: str) -> dict[int, EpisodeRecord]:
        """Return the episodes of a part that need not be played again, by place."""
        return {place: record for place, record in self._records[part].items() if not is_void(record)}

    def records(self, part: str) -> list[EpisodeRecord]:
        """Return all episodes of a part in the order of their places."""
        return [record for _, record in sorted(self._records[part].items())]

    def add(
        self,
        part: str,
        played: Sequence[tuple[int, EpisodeRecord]],
        shots: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """Save episodes that have just ended, each with its place and the values in `more`; `shots` maps ids
        to memory lines of the earlier episodes in their prompts."""
        new = {id: line for id, line in (shots or {}).items() if id not in self.shots}
        self.shots |= new
        lines = [{"part": part, "place": place, "record": record, **more} for place, record in played]
        if lines and new:
            lines[0]["shots"] = new
        if self.path is not None:
            self._write(lines)
        self._records[part] |= dict(played)

    def _write(self, lines: list[dict[str, Any]]) -> None:
        assert self._file is not None and self.path is not None
        if not self._begun:
            lines = [{"asked": self.asked}, *lines]
        with telling_of_no_space(self.path, "Free some, and start the same command again with --resume."):
            if not self._begun:
                self._file.truncate(0)
            self._file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            self._file.flush()
            os.fsync(self._file.fileno())
        self._begun = True

    def finish(self) -> str:
        """Remove the file. If any episode is void, keep it and return a sentence on how to resume."""
        if any(is_void(record) for records in self._records.values() for record in records.values()):
            return self.how_to_go_on()
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        return ""

    def close(self) -> None:
        """Close the file, so that another process can continue it."""
        if self._file is not None:
            if self.path is not None and self.path.is_file() and not self.path.stat().st_size:
                self.path.unlink(missing_ok=True)  # nothing was played
            with suppress(OSError):  # the disk may be full, as reported before
                self._file.close()
            self._file = None

    def how_to_go_on(self) -> str:
        """Return a sentence on how to resume a stopped evaluation; empty if no episode is saved."""
        count = sum(len(self.done(part)) for part in self._records)
        if self.path is None or not count:
            return ""
        return f"{count:,} episodes are kept in {self.path}. The same command with --resume plays the rest."

    def open(self) -> None:
        """Open and lock the file; raise ConfigError if it is not writable or another evaluation writes it."""
        assert self.path is not None
        try:
            file = self.path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigError(f"'{self.path}' cannot be written: {error}.") from None
        if not locks(file, self.path):
            file.close()
            raise ConfigError(
                f"another evaluation writes '{self.path}' now. Start this one when that one has ended, or "
                "name another file by --json."
            )
        self._file = file


def other_settings(before: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Return, as text, the old values of settings that differ now; empty if none does."""
    others = [name for name in dict.fromkeys((*before, *asked)) if asked.get(name) != before.get(name)]
    return ", ".join(f"{name} {json.dumps(before.get(name), ensure_ascii=False)[:60]}" for name in others)


def _episodes_in(path: Path) -> int:
    """Return how many episodes would be lost with a file; void ones do not count."""
    entries = whole_lines(path)[1:]
    try:
        return sum(not is_void(json.loads(entry)["record"]) for entry in entries)
    except (ValueError, TypeError, KeyError):
        return len(entries)


def open_journal(json_file: Path | None, asked: Mapping[str, Any], resume: bool) -> Journal:
    """Return the journal of an evaluation that writes `json_file`; raise ConfigError if it cannot resume, or
    episodes of a stopped evaluation would be lost."""
    if json_file is None or is_stream(json_file):
        if resume:
            given = "" if json_file is None else f" '{json_file}' keeps nothing to go on with."
            raise ConfigError(f"--resume needs --json, the file of the evaluation that was stopped.{given}")
        return Journal()
    path = json_file.with_name(f"{json_file.name}.partial")
    journal, there = Journal(path, asked), path.exists()
    journal.open()
    try:
        if resume and there:
            journal.read()
        elif resume and _is_whole(json_file):
            raise ConfigError(
                f"--resume: '{json_file}' is whole, nothing is left to play. Leave out --resume to play "
                "all anew, or name another file by --json."
            )
        elif there and not _is_left_over(path, json_file) and (kept := _episodes_in(path)) > 0:
            raise ConfigError(
                f"'{path}' holds {kept:,} episodes of an evaluation that was stopped. Add --resume to go on "
                "with it, or remove the file to start anew."
            )
    except ConfigError:
        journal.close()
        raise
    return journal


def _is_left_over(journal: Path, json_file: Path) -> bool:
    """Return whether a journal's evaluation has ended, so that only void episodes are left to play."""
    return _is_whole(json_file) and json_file.stat().st_mtime_ns >= journal.stat().st_mtime_ns


def _is_whole(json_file: Path) -> bool:
    """Return whether the file belongs to an evaluation that was not stopped."""
    if not json_file.exists():
        return False
    try:
        saved = json.loads(json_file.read_bytes())
    except ValueError:
        return True
    return not (isinstance(saved, dict) and saved.get("stopped"))


@contextmanager
def kept(journal: Journal, say: Any) -> Iterator[None]:
    """Call `say` with a sentence on how to resume if the block is interrupted."""
    try:
        yield
    except BaseException:
        if sentence := journal.how_to_go_on():
            say(sentence)
        raise
