"""What is printed of arms and of their comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trl_dbbench.evaluation.compare.arms import Arm
from trl_dbbench.evaluation.compare.comparison import Comparison, Flip, Outcome, Pairing
from trl_dbbench.evaluation.compare.figures import OVERALL, Figures, best_measures, figures_of
from trl_dbbench.runs.records import EpisodeRecord

SHOWN_VOID = 5
"""Tasks of a pair that are named as void."""

SHOWN_FLIPS = 3
"""Of each direction, with transcripts."""

MAX_CHARACTERS = 160
"""Of a line of a transcript."""


def judgement(arm: Arm) -> str:
    """The figures of one arm: overall, by group, and how its episodes went."""
    figures = figures_of(arm)
    rows = [(name, [value]) for name, value in figures.rows()]
    lines = [str(arm.sampling), *columns(rows)] if arm.sampling else columns(rows)
    if len(figures.shares) > 1:
        measures = best_measures(figures.shares[OVERALL])
        table = [(group, [str(of.get(m, "")) for m in measures]) for group, of in figures.shares.items()]
        lines = [*lines, "", *columns([("", measures), *table])]
    return "\n".join(lines)


def comparison_text(comparison: Comparison) -> str:
    """The figures side by side, the pairs, and some of the tasks that flipped."""
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
        lines += [*_pairing(pairing), ""]
    lines += [f"note: {note}" for note in comparison.notes]
    return "\n".join(lines).rstrip()


def side_by_side(figures: Sequence[Figures]) -> list[tuple[str, list[str]]]:
    """(name, a value for each arm) of what `Figures.rows` has; a value is empty where an arm has none."""
    each = [dict(of.rows()) for of in figures]
    names: list[str] = []
    for rows in each:
        # a row that an earlier arm has not comes after the one that it follows
        place = 0
        for name in rows:
            if name in names:
                place = names.index(name) + 1
            else:
                names.insert(place, name)
                place += 1
    return [(name, [rows.get(name, "") for rows in each]) for name in names]


def columns(rows: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Lines whose values stand below each other."""
    table = [[name, *values] for name, values in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]


def _pairing(pairing: Pairing) -> Iterator[str]:
    yield f"{pairing.other} against {pairing.first}, {pairing.tasks} tasks"
    yield from _outcome(pairing)
    if pairing.faults:
        yield f"  {pairing.faults} more left out: the environment failed in one of the two"
        for each in pairing.void[:SHOWN_VOID]:
            yield f"    {_short(each.task_id)}: void in {' and '.join(each.arms)}, {_short(each.reason)}"
        if others := pairing.void[SHOWN_VOID:]:
            yield f"    {len(others)} other task{'s' * (len(others) > 1)}; the file of --json has all"
    if pairing.void_wrong is not None:
        yield f"  with void episodes counted as wrong, {pairing.void_wrong.tasks} tasks"
        yield from (f"  {line}" for line in _outcome(pairing.void_wrong))
    for won, title in ((True, "now right"), (False, "now wrong")):
        flips = [flip for flip in pairing.flips if flip.won is won]
        if not flips:
            continue
        more = f", the first {SHOWN_FLIPS} of them" if len(flips) > SHOWN_FLIPS else ""
        yield f"  {title}: {len(flips)}{more}"
        for flip in flips[:SHOWN_FLIPS]:
            yield from _flip(flip, pairing)


def _outcome(of: Outcome) -> Iterator[str]:
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
    """A line for each action, and one for what came of it."""
    for turn in episode["turns"]:
        if "sql" in turn:
            yield f"SQL> {_short(turn['sql'])}"
        elif "answer" in turn:
            yield f"answer: {_short(turn['answer'])}"
        else:
            yield f"unreadable: {_short(turn.get('text', ''))}"
        if turn.get("observation") is not None:
            yield f"     {_short(str(turn['observation']))}"


def _short(text: str) -> str:
    # what an agent wrote may hold control characters that a terminal would obey
    text = "".join(char if char.isprintable() else " " for char in " ".join(text.split()))
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
