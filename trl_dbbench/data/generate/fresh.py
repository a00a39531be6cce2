"""A fresh task for each draw, which depends only on the settings and the number of the draw.

```yaml
tasks: generate://full?seed=1&skills=select,limit_only
max_steps: 500
```

So no state is kept between draws, and a resumed run gets exactly the tasks that it would have had. They
belong to the train split: they share no table and no question with `trl-dbbench generate --split test`. In
rare cases two draws give the same task.
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
    """Endless tasks, by the number of the draw; `schema`, if given, replaces theirs."""

    request: Request
    schema: str | None = None

    @classmethod
    def of(cls, url: str, schema: str | None = None) -> FreshTasks:
        """Read `generate://LEVEL?seed=1&skills=a,b&single_skill=true&max_skills=3`; see `generate_tasks`.

        All parts are optional; the level is `full` by default. Raise ConfigError if there are no such tasks.
        """
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
        made.request.plans()  # raises for impossible requests
        return made

    @lru_cache(maxsize=4_096)  # noqa: B019 - of a frozen value; each sample of a group asks for its draw
    def task(self, draw: int) -> Task:
        """Return the task of a draw, counted from 0; each skill comes once before any comes again.

        Raise ConfigError if none is found, which can happen with `max_skills` and few skills.
        """
        request, skills = self.request, list(self.request.plans())
        rounds, place = divmod(draw, len(skills))
        target = random.Random(f"{request.name}-round-{rounds}").sample(skills, len(skills))[place]
        rng = random.Random(f"{request.name}-draw-{draw}")
        with SQLiteDatabase(PATIENT) as database:
            for task in tried(rng, request, target, database):
                return replace(task, id=f"{request.name}-draw-{draw}", schema=self.schema or task.schema)
        raise ConfigError(f"no task of {target} is found in {TRIES:,} tries. Leave the skill out.")
