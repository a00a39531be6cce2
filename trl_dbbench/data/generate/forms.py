"""The forms of questions over several tables: SQL, and several wordings of the question that it answers.

```
kind, shape, by the column that its rows are in the order of
  SQL
  - a wording
```

The shape says how the tables hang together (`relational.Draft.parts`); `relational.py` draws what else stands in the
blanks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """A template; see the module."""

    kind: str
    shape: str
    by: str
    sql: str
    wordings: tuple[str, ...]

    @property
    def skills(self) -> frozenset[str]:
        return frozenset({self.kind})


def _read(text: str) -> Iterator[Form]:
    for entry in text.strip().split("\n\n"):
        head, sql, *wordings = map(str.strip, entry.splitlines())
        kind, shape, by = head.split(", ")
        yield Form(kind, shape, by.removeprefix("by "), sql, tuple(each[2:] for each in wordings))


FORMS = tuple(
    _read(
        """
inner_join, pc, by p.name
  SELECT DISTINCT {p.name} FROM {pc} WHERE {w.sql} ORDER BY {o.sql}
  - Which {p.nouns} have at least one {c.noun} {w.text}? Give each {p.name.label} once, {s}.
  - List without repetitions the {p.name.label} of every {p.noun} that has {c.a} {w.text}, {s}.
  - Find all {p.nouns} with one or more {c.nouns} {w.text}. Show every {p.name.label} only once, {s}.

inner_join, pc, by c.name
  SELECT {c.name}, {p.name} FROM {pc} WHERE {v.sql} ORDER BY {o.sql}
  - For every {c.noun} of {p.a} {v.text}, show the {c.name.label} and the {p.name.label}, {s}.
  - List {c.name.label} and {p.name.label} of all {c.nouns} that belong to {p.a} {v.text}, {s}.
  - Which {c.nouns} belong to {p.a} {v.text}? Give the {c.name.label} and the {p.name.label}, {s}.

inner_join, pcq, by p.name
  SELECT DISTINCT {p.name} FROM {chain} WHERE {u.sql} ORDER BY {o.sql}
  - Which {p.nouns} have {c.a} whose {z.noun} is {z.a} {u.text}? Give each {p.name.label} once, {s}.
  - List without repetitions the {p.name.label} of all {p.nouns} with {c.a} that belongs to {z.a} {u.text}, {s}.
  - Through their {c.nouns}, which {p.nouns} are linked to {z.a} {u.text}? Every {p.name.label} only once, {s}.

inner_join, pcqr, by p.name
  SELECT DISTINCT {p.name} FROM {chain} WHERE {u.sql} ORDER BY {o.sql}
  - Which {p.nouns} have {c.a} whose {q.noun} belongs to {z.a} {u.text}? Give each {p.name.label} once, {s}.
  - List without repetitions the {p.name.label} of all {p.nouns} with {c.a} of {q.a} of {z.a} {u.text}, {s}.
  - Find the {p.nouns} that have some {c.noun} of {q.a} that belongs to {z.a} {u.text}: every {p.name.label} once, {s}.

join_group_by, pc, by k
  SELECT {k}, {f}({n}) FROM {pc} GROUP BY {k} ORDER BY {o.sql}
  - For each {k.label} of the {p.nouns} that have {c.nouns}, what is the {word} {n.label} of these {c.nouns}? Show {k.label} and value, {s}.
  - Group the {c.nouns} by the {k.label} of their {p.noun}. Give each {k.label} that occurs and the {word} {n.label}, {s}.
  - Show every {k.label} of {p.nouns} with {c.nouns} and the {word} {n.label} of those {c.nouns}, {s}.

join_group_by, pc, by p.name
  SELECT {p.name}, COUNT(*) FROM {pc} GROUP BY {p.name} HAVING COUNT(*) >= {m} ORDER BY {o.sql}
  - Which {p.nouns} have at least {m} {c.nouns}? Show {p.name.label} and number of {c.nouns}, {s}.
  - Give the {p.name.label} of every {p.noun} with {m} or more {c.nouns} and how many there are, {s}.
  - List {p.name.label} and count of {c.nouns} for the {p.nouns} that have no fewer than {m} of them, {s}.

join_group_by, pc, by p.name
  SELECT {p.name}, SUM({n}) FROM {pc} GROUP BY {p.name} HAVING SUM({n}) >= {sum} ORDER BY {o.sql}
  - Which {p.nouns} have {c.nouns} with a total {n.label} of at least {sum}? Show {p.name.label} and total, {s}.
  - Add up the {n.label} of the {c.nouns} of each {p.noun}. Show {p.name.label} and sum where it is {sum} or more, {s}.
  - Give {p.name.label} and total {n.label} of the {c.nouns} of every {p.noun} whose total is not below {sum}, {s}.

join_group_by, pcq, by qk
  SELECT {qk}, SUM({n}) FROM {chain} WHERE {v.sql} GROUP BY {qk} ORDER BY {o.sql}
  - Of the {c.nouns} of {p.nouns} {v.text}, what is the total {n.label} for each {qk.label} of the {z.noun}? Show {qk.label} and total, {s}.
  - Take only {c.nouns} of {p.nouns} {v.text}. For every {qk.label} of their {z.nouns}, give the {qk.label} and the sum of {n.label}, {s}.
  - Show the {qk.label} of the {z.noun} and the total {n.label}, over {c.nouns} whose {p.noun} is {p.a} {v.text}, {s}.

left_join, pc, by p.name
  SELECT {p.name} FROM {left} WHERE {c.key} IS NULL ORDER BY {o.sql}
  - Which {p.nouns} have no {c.noun} at all? Give the {p.name.label}, {s}.
  - List the {p.name.label} of every {p.noun} without any {c.noun}, {s}.
  - Show the {p.name.label} of all {p.nouns} to which no {c.noun} belongs, {s}.

left_join, pc, by p.name
  SELECT {p.name}, COUNT({c.key}) FROM {left} GROUP BY {p.name} ORDER BY {o.sql}
  - How many {c.nouns} does each {p.noun} have? Show {p.name.label} and number, 0 where there are none, {s}.
  - For all {p.nouns}, also those without {c.nouns}, give the {p.name.label} and the number of {c.nouns}, {s}.
  - Count the {c.nouns} of every {p.noun}, with a zero for {p.nouns} without any: {p.name.label} and count, {s}.

left_join, pc, by p.name
  SELECT {p.name} FROM {left} AND {w.sql} WHERE {c.key} IS NULL ORDER BY {o.sql}
  - Which {p.nouns} have no {c.noun} {w.text}? {p.nouns} without any {c.noun} count too. Give the {p.name.label}, {s}.
  - List the {p.name.label} of every {p.noun} for which there is no {c.noun} {w.text}, {s}.
  - Show all {p.nouns} but those with {c.a} {w.text}: the {p.name.label}, {s}.

left_join, pc, by p.name
  SELECT {p.name}, COALESCE(SUM({n}), 0) FROM {left} GROUP BY {p.name} ORDER BY {o.sql}
  - What is the total {n.label} of the {c.nouns} of each {p.noun}? Show {p.name.label} and total, 0 for {p.nouns} without {c.nouns}, {s}.
  - For all {p.nouns}, give the {p.name.label} and the sum of {n.label} over their {c.nouns}; where there are none the sum is 0, {s}.
  - Add up {n.label} of the {c.nouns} of every {p.noun}, and show 0 if it has none: {p.name.label} and sum, {s}.

self_join, ab, by a.name
  SELECT {a.name}, {b.name} FROM {ab} ORDER BY {o.sql}
  - Show each {a.noun} that has a {boss} together with that {boss}: first the {a.name.label} of the {a.noun}, then that of the {boss}, sorted by the former {o.how}.
  - For every {a.noun} with a {boss}, give the {a.name.label} of the {a.noun} and that of the {boss}, sorted by that of the {a.noun} {o.how}.
  - List pairs of {a.noun} and {boss} by their {a.name.label}, leaving out who has no {boss}, sorted by the {a.noun} {o.how}.

self_join, ab, by a.name
  SELECT {a.name} FROM {ab} WHERE {number} > {other} ORDER BY {o.sql}
  - Which {a.nouns} have more {number.label} than their {boss}? Give the {a.name.label}, {s}.
  - List the {a.name.label} of every {a.noun} whose {number.label} is above that of the {boss}, {s}.
  - Find the {a.nouns} that exceed their own {boss} in {number.label}: show the {a.name.label}, {s}.

self_join, ab, by b.name
  SELECT {b.name}, COUNT(*) FROM {ab} GROUP BY {b.name} ORDER BY {o.sql}
  - How many {a.nouns} does each {boss} have below them directly? Show the {b.name.label} of the {boss} and the number, {s}.
  - For every {a.noun} who is the {boss} of somebody, give the {b.name.label} and how many {a.nouns} name them as {boss}, {s}.
  - Count the {a.nouns} of each {boss}: {b.name.label} of the {boss} and count, without those who are nobody's {boss}, {s}.

self_join, ab, by a.name
  SELECT {a.name} FROM {ab} WHERE {b.name} = '{top}' ORDER BY {o.sql}
  - Which {a.nouns} have '{top}' as their {boss}? Give the {a.name.label}, {s}.
  - List the {a.name.label} of every {a.noun} whose {boss} is '{top}', {s}.
  - '{top}' is the {boss} of which {a.nouns}? Show the {a.name.label}, {s}.

self_join, eg, by e.name
  SELECT {e.name}, {g.name} FROM {e.source} JOIN {g.source} ON {k} = {k2} AND {e.key} < {g.key} ORDER BY {o.sql}, {g.name}
  - Which two {e.nouns} share the same {k.label}? Show each pair once: the {e.name.label} of the one with the smaller {e.key.label}, then that of the other. Sort by the first name {o.how}, then by the second from A to Z.
  - List all pairs of different {e.nouns} with equal {k.label}, by their {e.name.label}, the one with the lower {e.key.label} first; sort by the first name {o.how}, then by the second from A to Z.
  - Pair up {e.nouns} of the same {k.label}. In a pair the smaller {e.key.label} comes first. Give both {e.name.label}s, ordered by the first {o.how}, then alphabetically by the second.

set_operation, pcd, by ref
  SELECT {ref} FROM {c.source} INTERSECT SELECT {dref} FROM {d.source} ORDER BY {o.plain}
  - Which {ref.label}s occur both among the {c.nouns} and among the {d.nouns}? Each once, {s}.
  - Give the {ref.label} of every {p.noun} that has {c.a} as well as {d.a}, without repetitions, {s}.
  - Find the {p.nouns} with {c.nouns} and {d.nouns} alike; show each {ref.label} once, {s}.

set_operation, pcd, by ref
  SELECT {ref} FROM {c.source} EXCEPT SELECT {dref} FROM {d.source} ORDER BY {o.plain}
  - Which {ref.label}s occur among the {c.nouns} but not among the {d.nouns}? Each once, {s}.
  - Give the {ref.label} of every {p.noun} that has {c.a} but no {d.noun}, without repetitions, {s}.
  - Find the {p.nouns} with {c.nouns} and without {d.nouns}; show each {ref.label} once, {s}.

set_operation, pcd, by ref
  SELECT {ref} FROM {c.source} WHERE {w.sql} UNION SELECT {dref} FROM {d.source} ORDER BY {o.plain}
  - Which {p.nouns} have {c.a} {w.text} or any {d.noun}, or both? Give each {ref.label} once, {s}.
  - Collect the {ref.label} of all {c.nouns} {w.text} and of all {d.nouns}, without repetitions, {s}.
  - List once each {ref.label} that belongs to some {c.noun} {w.text} or to whichever {d.noun}, {s}.

set_operation, pcd, by ref
  SELECT {ref} FROM {c.source} UNION SELECT {dref} FROM {d.source} ORDER BY {o.plain}
  - Which {ref.label}s occur among the {c.nouns} or the {d.nouns} or both? Each once, {s}.
  - Give the {ref.label} of every {p.noun} that has {c.a} or {d.a}, without repetitions, {s}.
  - Collect the {ref.label}s of {c.nouns} and {d.nouns} in one list without repetitions, {s}.

set_operation, pc, by p.name
  SELECT {p.name} FROM {p.source} WHERE {v.sql} EXCEPT SELECT {p.name} FROM {pc} ORDER BY {o.plain}
  - Which {p.nouns} {v.text} have no {c.noun}? Give the {p.name.label}, {s}.
  - List the {p.name.label} of the {p.nouns} {v.text}, leaving out all that have {c.a}, {s}.
  - Of the {p.nouns} {v.text}, which ones lack {c.nouns}? Show the {p.name.label}, {s}.

window_function, pc, by p.name
  SELECT {p.name}, RANK() OVER (ORDER BY SUM({n}) DESC) FROM {pc} GROUP BY {p.name} ORDER BY {o.sql}
  - Rank the {p.nouns} that have {c.nouns} by the total {n.label} of these, 1 for the highest. Show {p.name.label} and rank, {s}.
  - What place does each {p.noun} with {c.nouns} take by the sum of their {n.label} (the largest sum is number 1)? Give {p.name.label} and place, {s}.
  - For every {p.noun} with at least one {c.noun}, give the {p.name.label} and its rank by total {n.label}, the greatest total ranking first, {s}.

window_function, pc, by c.key
  SELECT {c.key}, SUM({n}) OVER (ORDER BY {c.key}) FROM {pc} WHERE {v.sql} ORDER BY {c.key}
  - Give the running total of {n.label} over the {c.nouns} of {p.nouns} {v.text}, by ascending {c.key.label}: show {c.key.label} and the total up to and with that {c.noun}.
  - For each {c.noun} whose {p.noun} is {p.a} {v.text}, show its {c.key.label} and the cumulative {n.label} so far. Go by {c.key.label}, the smallest first.
  - Going through the {c.nouns} of {p.nouns} {v.text} from the smallest {c.key.label} up, add up the {n.label}. Show {c.key.label} and sum so far.

window_function, pc, by p.name
  SELECT who, what FROM (SELECT {p.name} AS who, {c.name} AS what, ROW_NUMBER() OVER (PARTITION BY {p.name} ORDER BY {n} DESC) AS place FROM {pc}) AS ranked WHERE place = {m} ORDER BY who
  - For each {p.noun} with at least {m} {c.nouns}, which of them has place {m} by {n.label} (place 1 is the highest)? Show {p.name.label} and {c.name.label}, sorted by {p.name.label} from A to Z.
  - Within each {p.noun}, number the {c.nouns} by {n.label} from high to low. Give {p.name.label} and {c.name.label} of number {m} where there is one, ordered by {p.name.label} alphabetically.
  - List, sorted by {p.name.label} alphabetically, each {p.name.label} with the {c.name.label} of the {c.noun} that is number {m} in {n.label}, counting from the largest; leave out {p.nouns} with fewer {c.nouns}.

window_function, pc, by c.name
  SELECT {c.name}, SUM({n}) OVER (PARTITION BY {ref}) FROM {c.source} ORDER BY {o.sql}
  - Show every {c.name.label} and beside it the total {n.label} of all {c.nouns} of the same {p.noun}, {s}.
  - For each {c.noun}, give the {c.name.label} and the sum of {n.label} over all {c.nouns} with its {ref.label}, {s}.
  - List the {c.nouns} by {c.name.label}, each with the overall {n.label} of its {p.noun}'s {c.nouns}, {s}.

cte, pc, by p.name
  WITH totals AS (SELECT {p.name} AS who, SUM({n}) AS total FROM {pc} GROUP BY {p.name}) SELECT who, total FROM totals WHERE total > (SELECT AVG(total) FROM totals) ORDER BY who
  - Add up the {n.label} of the {c.nouns} of each {p.noun} that has some. Whose total is above the average of these totals? Show {p.name.label} and total, sorted by {p.name.label} from A to Z.
  - Which {p.nouns} have {c.nouns} with a total {n.label} greater than the mean total of the {p.nouns} that have {c.nouns}? Give {p.name.label} and total, ordered by {p.name.label} alphabetically.
  - Compare the total {n.label} of each {p.noun} with {c.nouns} to the average of such totals; list {p.name.label} and total of those above it, alphabetically by {p.name.label}.

cte, pc, by ref
  WITH totals AS (SELECT {ref}, SUM({n}) AS total FROM {c.source} GROUP BY {ref}) SELECT {edge}(total) FROM totals
  - Add up the {n.label} of the {c.nouns} for each {ref.label}. What is the {extreme} of these sums?
  - Of the totals of {n.label} per {ref.label} among the {c.nouns}, give the {extreme} one.
  - What is the {extreme} total {n.label} that the {c.nouns} of one {p.noun} have, among {p.nouns} with {c.nouns}?

cte, pc, by p.name
  WITH counts AS (SELECT {ref}, COUNT(*) AS number FROM {c.source} GROUP BY {ref}) SELECT {p.name} FROM {p.source} JOIN counts ON counts.{ref.column} = {p.key} WHERE counts.number > (SELECT AVG(number) FROM counts) ORDER BY {o.sql}
  - Which {p.nouns} have more {c.nouns} than the {p.nouns} with {c.nouns} have on average? Give the {p.name.label}, {s}.
  - List the {p.name.label} of every {p.noun} whose number of {c.nouns} is above the mean number, taken over the {p.nouns} that have {c.nouns}, {s}.
  - Count the {c.nouns} of each {p.noun} that has some. Whose count exceeds the average of these counts? Show the {p.name.label}, {s}.

cte, ab, by a.name
  WITH RECURSIVE chain AS (SELECT {a.key}, {a.name} FROM {a.source} WHERE {a.name} = '{value}' UNION ALL SELECT {b.key}, {b.name} FROM {b.source} JOIN chain ON {b.superior} = chain.{a.key.column}) SELECT {a.name.column} FROM chain ORDER BY {o.plain}
  - Who is '{value}' or stands below '{value}' in the chain of {boss}s, directly or through others? Give the {a.name.label}, {s}.
  - List the {a.name.label} of '{value}', of all {a.nouns} whose {boss} that is, of those who have one of these as {boss}, and so on down, {s}.
  - Show '{value}' and every {a.noun} who has '{value}' as {boss} at any level above: the {a.name.label}, {s}.

correlated_subquery, pci, by c.name
  SELECT {c.name} FROM {c.source} WHERE {n} > (SELECT AVG({i_n}) FROM {i.source} WHERE {i_ref} = {ref}) ORDER BY {o.sql}
  - Which {c.nouns} have {n.label} above the average of the {c.nouns} of the same {p.noun}? Give the {c.name.label}, {s}.
  - List the {c.name.label} of every {c.noun} whose {n.label} is greater than the mean of all {c.nouns} with its {ref.label}, {s}.
  - Compare each {c.noun} with the {c.nouns} of its own {p.noun}: show the {c.name.label} where the {n.label} exceeds their average, {s}.

correlated_subquery, eg, by e.name
  SELECT {e.name} FROM {e.source} WHERE {number} > (SELECT AVG({other}) FROM {g.source} WHERE {k2} = {k}) ORDER BY {o.sql}
  - Which {e.nouns} have {number.label} above the average of the {e.nouns} with the same {k.label}? Give the {e.name.label}, {s}.
  - List the {e.name.label} of every {e.noun} whose {number.label} is greater than the mean {number.label} of its {k.label}, {s}.
  - Find the {e.nouns} that exceed the average {number.label} of their own {k.label}: show the {e.name.label}, {s}.

correlated_subquery, pc, by p.name
  SELECT {p.name}, (SELECT COUNT(*) FROM {c.source} WHERE {ref} = {p.key} AND {w.sql}) FROM {p.source} ORDER BY {o.sql}
  - For each {p.noun}, how many {c.nouns} {w.text} are there? Show {p.name.label} and number, 0 included, {s}.
  - Give every {p.name.label} with the number of {c.nouns} {w.text} that belong to the {p.noun}, also where it is 0, {s}.
  - List all {p.nouns} by {p.name.label}, each with its count of {c.nouns} {w.text} (possibly 0), {s}.

correlated_subquery, pc, by p.name
  SELECT {p.name} FROM {p.source} WHERE EXISTS (SELECT 1 FROM {c.source} WHERE {ref} = {p.key} AND {w.sql}) ORDER BY {o.sql}
  - For which {p.nouns} does at least one {c.noun} {w.text} exist? Give each {p.name.label} once, {s}.
  - List the {p.name.label} of every {p.noun} to whom or which some {c.noun} {w.text} belongs, each once, {s}.
  - Name the {p.nouns} that occur with {c.a} {w.text}: every {p.name.label} once, {s}.
"""
    )
)
