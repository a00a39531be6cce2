"""Failures of the hub, as one line that says what is to be done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from trl_dbbench.errors import ConfigError


@contextmanager
def telling_of_the_hub(what: str, instead: str) -> Iterator[None]:
    """Says in one line that the hub refuses or does not answer.

    Args:
        what: was to be done, as in "pushed to 'me/agent'".
        instead: what the user can do.

    Raises:
        ConfigError: if the block ended because of the hub.
    """
    try:
        yield
    except (HfHubHTTPError, httpx2.HTTPError, LocalTokenNotFoundError) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"the model could not be {what}: {said} {instead}") from None
