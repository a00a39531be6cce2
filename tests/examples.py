"""How many examples the property tests try, and which.

`make test` tries the same ones each time, so that neither a first look nor a change depends on luck. `make fuzz` draws
new ones, and many more. What it finds stays in its test as an `@example`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

USUAL = 100
settings.register_profile("suite", max_examples=USUAL, derandomize=True, deadline=None)
settings.register_profile("fuzz", max_examples=30 * USUAL, deadline=None, print_blob=True)
settings.load_profile(
    "suite"
)  # `pytest --hypothesis-profile fuzz` comes later, but before the tests are read


def examples(count: int = USUAL, **options: Any) -> settings:
    """This many of a property test; under `make fuzz` as many times more as its profile has."""
    return settings(max_examples=count * settings().max_examples // USUAL, **options)
