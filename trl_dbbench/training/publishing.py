"""Failures of the hub, as one line with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from trl_dbbench.errors import ConfigError


@contextmanager
def telling_of_the_hub(what: str, instead: str) -> Iterator[None]:
    """Turn an error of the hub within the block into one line.

    Args:
        what: completes "the model could not be", as in "pushed to 'me/agent'".
        instead: what the user can do.

    Raises:
        ConfigError: if the hub refuses or does not answer.
    """
    try:
        yield
    except (HfHubHTTPError, httpx2.HTTPError, LocalTokenNotFoundError) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"the model could not be {what}: {said} {instead}") from None
