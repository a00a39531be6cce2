"""Comparison of arms: their figures side by side, and each arm paired with the first, task by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.compare.arms import GREEDY, Arm, mcnemar, paired_interval
from trl_dbbench.evaluation.compare.figures import OVERALL, Figures, best_measures, figures_of
from trl_dbbench.runs.records import EpisodeRecord, is_void, key_of, void_reasons
from trl_dbbench.utils.console import columns, printable

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Difference:
    """Difference from the first arm, -1 to 1, with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    tasks: int

    def __str__(self) -> str:
        return f"{100 * self.value:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


@dataclass(frozen=True)
class Flip:
    """Task that exactly one of two arms solved greedily."""

    won: bool
    """True if the other arm solved the task and the first one did not."""
    first: EpisodeRecord
    other: EpisodeRecord
    gold: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pairing:
    """Comparison of an arm with the first one, on the tasks that both played without an environment fault.

    Args:
        wins, losses: number of tasks that only the other arm, or only the first one, solved greedily.
        differences: difference per measure (`Arm.values`) that both arms have.
        void: tasks left out, each with the arms in which it is void and the reason in the first of these.
        void_wrong: the same pairing with void episodes counted as wrong; `None` if none is void.
        flips: the greedy wins, then the losses.
    """

    first: str
    other: str
    wins: int
    losses: int
    both_right: int
    both_wrong: int
    differences: dict[str, Difference]
    void: list[dict[str, Any]] = field(default_factory=list)
    void_wrong: Pairing | None = None
    flips: list[Flip] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """Number of tasks left out because the environment failed in one or both."""
        return len(self.void)

    @property
    def ties(self) -> int:
        return self.both_right + self.both_wrong

    @property
    def tasks(self) -> int:
        return self.wins + self.losses + self.ties

    @property
    def p(self) -> float:
        """p-value of McNemar's exact test."""
        return mcnemar(self.wins, self.losses)

    @property
    def p_text(self) -> str:
        """The p-value as text, such as `0.031`, `1` or `2.4e-11`; rounding never lifts it to 0.05."""
        p = self.p
        if p < 0.001:
            return f"{p:.2g}"
        places = next(n for n in count(3) if (round(p, n) < SIGNIFICANT) == (p < SIGNIFICANT))
        return f"{p:.{places}f}".rstrip("0").rstrip(".")

    @property
    def verdict(self) -> str:
        """Sentence on which arm is better; it claims no difference if p is 0.05 or more."""
        if self.p >= SIGNIFICANT:
            return f"No difference shown between {self.other} and {self.first} (p = {self.p_text})."
        more = "more" if self.wins > self.losses else "less"
        return f"{self.other} is right {more} often than {self.first} (p = {self.p_text})."

    def counts(self) -> dict[str, Any]:
        return {
            "wins": self.wins,
            "losses": self.losses,
            "ties": {"both_right": self.both_right, "both_wrong": self.both_wrong},
            "mcnemar_p": self.p,
            "verdict": self.verdict,
            "differences": {measure: vars(each) for measure, each in self.differences.items()},
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "other": self.other,
            **self.counts(),
            "faults": self.faults,
            "void": self.void,
            "void_wrong": None if self.void_wrong is None else self.void_wrong.counts(),
            "flips": [vars(flip) for flip in self.flips],
        }


@dataclass(frozen=True)
class Comparison:
    """Arms restricted to their common tasks; `pairings` compare every other arm with the first one."""

    arms: list[Arm]
    figures: list[Figures]
    pairings: list[Pairing]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON, with the episodes of flipped tasks only."""
        arms = [
            arm.to_dict() | {"figures": figures.to_dict()}
            for arm, figures in zip(self.arms, self.figures, strict=True)
        ]
        return {
            "tasks": len(self.arms[0].keys),
            "arms": arms,
            "pairings": [pairing.to_dict() for pairing in self.pairings],
            "notes": self.notes,
        }


def compare_arms(arms: Sequence[Arm], *, notes: Sequence[str] = ()) -> Comparison:
    """Compare every arm with the first one; raise ConfigError if they share no task."""
    first, *later = arms
    arms = [first, *(arm.named_as(first) for arm in later)]
    others = [set(arm.keys) for arm in arms[1:]]
    shared = {key for key in first.keys if all(key in keys for keys in others)}
    if not shared:
        raise ConfigError(
            f"{', '.join(arm.name for arm in arms)} have no task in common, so nothing can be compared. "
            "Evaluate them on the same --tasks, with the same schema and the same shared databases (at the "
            "same paths, if an earlier version wrote one of the files)."
        )
    notes = [*notes]
    if alone := len(set(first.keys).union(*others)) - len(shared):
        notes.append(f"{alone} task{'s' * (alone > 1)} not played by all were left out.")
    if len({str(arm.sampling) for arm in arms}) > 1:
        drawn = (f"{arm.name}: {arm.sampling or 'no samples'}" for arm in arms)
        notes.append(f"The samples were drawn differently ({'; '.join(drawn)}).")
    arms = [arm.only(shared) for arm in arms]
    pairings = [_pairing(arms[0], other) for other in arms[1:]]
    return Comparison(arms, [figures_of(arm) for arm in arms], pairings, notes)


def _pairing(first: Arm, other: Arm) -> Pairing:
    here, there = ({key_of(episode): episode for episode in arm.greedy} for arm in (first, other))
    void, flips = [], []
    for key, episode in here.items():
        pair = [(first.name, episode), (other.name, there[key])]
        if failed := [(name, each) for name, each in pair if is_void(each)]:
            (reason,) = void_reasons([failed[0][1]])
            of_task = {"task_id": episode["task_id"], "question": episode["question"]}
            void.append(of_task | {"arms": [name for name, _ in failed], "reason": reason})
        elif episode["right"] != there[key]["right"]:
            gold = first.gold.get(key) or other.gold.get(key) or {}
            flips.append(Flip(there[key]["right"], episode, there[key], gold))
    flips.sort(key=lambda flip: not flip.won)
    samples = any(map(is_void, (*first.samples, *other.samples)))
    void_wrong = _counted(first, other, void_wrong=True) if void or samples else None
    return replace(_counted(first, other), void=void, void_wrong=void_wrong, flips=flips)


def _counted(first: Arm, other: Arm, void_wrong: bool = False) -> Pairing:
    mine, theirs = first.values(void_wrong), other.values(void_wrong)
    differences = {
        measure: _difference(mine[measure], theirs[measure])
        for measure in mine
        if mine[measure].keys() & theirs.get(measure, {}).keys()
    }
    greedy = Counter(
        (bool(mine[GREEDY][key]), bool(theirs[GREEDY][key])) for key in mine[GREEDY] if key in theirs[GREEDY]
    )
    return Pairing(
        *(first.name, other.name),
        wins=greedy[False, True],
        losses=greedy[True, False],
        both_right=greedy[True, True],
        both_wrong=greedy[False, False],
        differences=differences,
    )


def _difference(first: Mapping[str, float], other: Mapping[str, float]) -> Difference:
    values = [other[key] - first[key] for key in first if key in other]
    low, high = paired_interval(values)
    return Difference(sum(values) / len(values), low, high, len(values))


SHOWN_VOID = 5
"""Most void tasks listed per pairing."""

SHOWN_FLIPS = 3
"""Most flipped tasks per direction that are shown with transcripts."""

MAX_CHARACTERS = 160
"""Most characters of a transcript's line."""


def judgement(arm: Arm) -> str:
    """Return the figures of one arm as text: overall, by group, and about its episodes."""
    figures = figures_of(arm)
    lines = [str(arm.sampling)] if arm.sampling else []
    lines += columns(side_by_side([figures]))
    if len(figures.shares) > 1:
        measures = best_measures(figures.shares[OVERALL])
        table = [(group, [str(of.get(m, "")) for m in measures]) for group, of in figures.shares.items()]
        lines = [*lines, "", *columns([("", measures), *table])]
    return "\n".join(lines)


def comparison_text(comparison: Comparison) -> str:
    """Return the figures side by side, the pairings, and some flipped tasks, as text."""
    names = [arm.name for arm in comparison.arms]
    lines = [*columns([("", names), *side_by_side(comparison.figures)]), ""]
    groups = {group: None for figures in comparison.figures for group in figures.shares if group != OVERALL}
    if groups:
        greedy = [
            (group, [str(figures.shares.get(group, {}).get("greedy", "")) for figures in comparison.figures])
            for group in groups
        ]
        lines += [*columns([("greedy", names), *greedy]), ""]
    for pairing in comparison.pairings:
        lines += [*_pairing_lines(pairing), ""]
    lines += [f"note: {note}" for note in comparison.notes]
    return "\n".join(lines).rstrip()


def side_by_side(figures: Sequence[Figures]) -> list[tuple[str, list[str]]]:
    """Return (name, one value per arm) for all `Figures.rows`; a value is empty if the arm lacks the row."""
    each = [dict(of.rows()) for of in figures]
    names: list[str] = []
    for rows in each:
        # a row that earlier arms lack goes after its predecessor in this arm
        place = 0
        for name in rows:
            if name in names:
                place = names.index(name) + 1
            else:
                names.insert(place, name)
                place += 1
    return [(name, [rows.get(name, "") for rows in each]) for name in names]


def _pairing_lines(pairing: Pairing) -> Iterator[str]:
    yield f"{pairing.other} against {pairing.first}, {pairing.tasks} tasks"
    yield from _outcome_lines(pairing)
    if pairing.faults:
        yield f"  {pairing.faults} more left out: the environment failed in one of the two"
        for each in pairing.void[:SHOWN_VOID]:
            arms, reason = " and ".join(each["arms"]), _short(each["reason"])
            yield f"    {_short(each['task_id'])}: void in {arms}, {reason}"
        if others := pairing.void[SHOWN_VOID:]:
            yield f"    {len(others)} other task{'s' * (len(others) > 1)}; the file of --json has all"
    if pairing.void_wrong is not None:
        yield f"  with void episodes counted as wrong, {pairing.void_wrong.tasks} tasks"
        yield from (f"  {line}" for line in _outcome_lines(pairing.void_wrong))
    for won, title in ((True, "now right"), (False, "now wrong")):
        flips = [flip for flip in pairing.flips if flip.won is won]
        if not flips:
            continue
        more = f", the first {SHOWN_FLIPS} of them" if len(flips) > SHOWN_FLIPS else ""
        yield f"  {title}: {len(flips)}{more}"
        for flip in flips[:SHOWN_FLIPS]:
            yield from _flip(flip, pairing)


def _outcome_lines(of: Pairing) -> Iterator[str]:
    ties = f"{of.both_right} both right, {of.both_wrong} both wrong"
    yield f"  wins {of.wins}, losses {of.losses}, ties {of.ties} ({ties})"
    for measure, difference in of.differences.items():
        yield f"  {measure}: {difference}, 95 % paired bootstrap"
    yield f"  McNemar's exact test: p = {of.p_text}"
    yield f"  {of.verdict}"


def _flip(flip: Flip, pairing: Pairing) -> Iterator[str]:
    yield f"    {flip.first['task_id']}: {_short(flip.first['question'])}"
    for name, episode in ((pairing.first, flip.first), (pairing.other, flip.other)):
        yield f"      {name}, {'right' if episode['right'] else 'wrong'}, {episode['status']}"
        yield from (f"        {line}" for line in transcript(episode))


def transcript(episode: EpisodeRecord) -> Iterator[str]:
    """Yield a line for each action, and one for its observation."""
    for turn in episode["turns"]:
        if "sql" in turn:
            yield f"SQL> {_short(turn['sql'])}"
        elif "answer" in turn:
            yield f"answer: {_short(turn['answer'])}"
        else:
            what = "reply" if turn.get("action") == "reply" else "unreadable"
            yield f"{what}: {_short(turn.get('text', ''))}"
        if turn.get("observation") is not None:
            yield f"     {_short(str(turn['observation']))}"


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
