"""Any task that there can be, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from trl_dbbench.tasks import Column, Gold, Table, Task
from trl_dbbench.tasks.skills import SKILLS

MD5 = "0123456789abcdef0123456789abcdef"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = text.filter(lambda name: name != "")
cells = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text


@st.composite
def any_tables(draw: st.DrawFn) -> Table:
    headers = draw(st.lists(names, min_size=1, max_size=4, unique_by=str.casefold))
    columns = tuple(Column(name, draw(st.sampled_from(["TEXT", "INT", "DECIMAL(8,2)"]))) for name in headers)
    rows = draw(st.lists(st.tuples(*(cells for _ in headers)), max_size=4))
    return Table(draw(names), columns, tuple(rows))


@st.composite
def any_tasks(draw: st.DrawFn) -> Task:
    grader = draw(st.sampled_from(["lifelong", "agentbench_text", "agentbench_fc", None]))
    rows = st.lists(st.lists(cells, max_size=3).map(tuple), max_size=3)
    answer = draw(rows if grader == "lifelong" else st.lists(text, max_size=3))
    question = draw(st.booleans())
    return Task(
        id=draw(text),
        question=draw(text),
        tables=tuple(
            draw(st.lists(any_tables(), min_size=1, max_size=2, unique_by=lambda table: table.name))
        ),
        operation="SELECT" if question else draw(st.sampled_from(["INSERT", "UPDATE", "DELETE"])),
        gold=Gold(tuple(answer), sql=draw(st.none() | text))
        if question
        else Gold(sql=draw(names), state_md5=draw(st.sampled_from([None, "", MD5]))),
        skills=tuple(draw(st.lists(st.sampled_from(SKILLS), max_size=3))),
        grader=grader,
    )
