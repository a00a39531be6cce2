"""A fresh task at every draw: a task depends only on the settings and the number of the draw.

```yaml
tasks: generate://full?seed=1&skills=select,limit_only
max_steps: 500
```

So nothing has to be kept of those before, and a run that is resumed goes on with the very tasks that it would
have had. They are of the train split: no table and no question of `trl-dbbench generate --split test` is
among them. Two draws may give the same task, which is rare.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from trl_dbbench.data.generate import TRIES, Request, tried
from trl_dbbench.data.generate.checks import PATIENT
from trl_dbbench.database.embedded.database import SQLiteDatabase
from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks import Task
from trl_dbbench.utils.lookup import unknown

SCHEME = "generate://"


@dataclass(frozen=True)
class FreshTasks:
    """Tasks without end, by number; `schema` replaces theirs if it is given."""

    request: Request
    schema: str | None = None

    @classmethod
    def of(cls, url: str, schema: str | None = None) -> FreshTasks:
        """Read `generate://LEVEL?seed=1&skills=a,b&single_skill=true&max_skills=3`, all but the level
        optional; see `generate_tasks`. Raise ConfigError if there are no such tasks."""
        parts = urlsplit(url)
        level = f"{parts.netloc}{parts.path}".rstrip("/") or "full"
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        readers: dict[str, Any] = {
            "seed": int,
            "skills": lambda text: tuple(filter(None, map(str.strip, text.split(",")))),
            "single_skill": lambda text: {"true": True, "false": False}[text.lower()],
            "max_skills": int,
        }
        read = {}
        for name, value in given.items():
            if name not in readers:
                raise ConfigError(f"{url}: {unknown('setting', name, readers)}.")
            try:
                read[name] = readers[name](value)
            except (ValueError, KeyError):
                raise ConfigError(f"{url}: {name} cannot be {value!r}.") from None
        made = cls(Request(**read, level=level), schema)
        made.request.plans()  # raises for what cannot be had
        return made

    @lru_cache(maxsize=4_096)  # noqa: B019 - of a frozen value; a draw comes once for each sample of its group
    def task(self, draw: int) -> Task:
        """Return the task of a draw, from 0; each skill comes once before any comes again. Raise ConfigError
        if none is found, which `max_skills` and few skills may bring about."""
        request, skills = self.request, list(self.request.plans())
        rounds, place = divmod(draw, len(skills))
        target = random.Random(f"{request.name}-round-{rounds}").sample(skills, len(skills))[place]
        rng = random.Random(f"{request.name}-draw-{draw}")
        with SQLiteDatabase(PATIENT) as database:
            for task in tried(rng, request, target, database):
                return replace(task, id=f"{request.name}-draw-{draw}", schema=self.schema or task.schema)
        raise ConfigError(f"no task of {target} is found in {TRIES:,} tries. Leave the skill out.")
