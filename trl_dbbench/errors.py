"""The library's exceptions, as a tree:

```
DBBenchError
├── TaskError          a task file or a task in it is wrong
├── ConfigError        a setting is wrong
├── EngineError        nothing can generate tokens
├── StorageError       the disk is full
├── RankError          another rank of the run failed
└── DatabaseError      the database cannot be used
    └── EnvironmentFault   it broke in the middle of an episode
        └── ServerCrash    a statement of that episode broke it
```

A statement that MySQL rejects raises none of these: its error is an observation for the agent.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class DBBenchError(Exception):
    """Base of every error that the library raises on purpose; its text is meant for the user."""


class TaskError(DBBenchError):
    """A task file, or a task in it, cannot be used."""


class ConfigError(DBBenchError):
    """A setting has a value that cannot work."""


class EngineError(DBBenchError):
    """No tokens can be generated: no server answers, or the model's output is unusable, such as NaN."""


class StorageError(DBBenchError):
    """A file cannot be written, because no space is left for it."""


class RankError(DBBenchError):
    """This rank is fine, but another one failed and cannot continue."""


class DatabaseError(DBBenchError):
    """A database cannot be started, reached, or used with the privileges that it grants."""


class EnvironmentFault(DatabaseError):
    """The database failed during an episode, through no fault of the agent.

    The episode ends as `Status.ENVIRONMENT_FAULT`, gets no reward and stays out of the update.

    Attributes:
        observation: what the agent reads if it turns out that its own statement caused the failure; `None` if
            it cannot have.
        error_code: the number of the error that `observation` reports.
        final: retrying would not help.
        still: the server stalled meanwhile, which says nothing about the statement.
        down: the library's own statements fail as well, so it waits for the server.
    """

    def __init__(
        self,
        text: str,
        *,
        observation: str | None = None,
        error_code: int | None = None,
        final: bool = False,
        still: bool = False,
        down: bool = False,
    ) -> None:
        super().__init__(text)
        self.observation = observation
        self.error_code = error_code
        self.final = final
        self.still = still
        self.down = down


class ServerCrash(EnvironmentFault):
    """A statement of the episode crashed the database server; it is not retried.

    The episode ends as `Status.SERVER_CRASH` and gets a reward. If anything else crashes the server, such as
    gold SQL, this is an ordinary fault.
    """

    def __init__(self) -> None:
        super().__init__("a statement of its own has ended the database server", final=True)


@contextmanager
def user_errors(*others: type[Exception]) -> Iterator[None]:
    """Exit with the error's text alone if the block raises a `DBBenchError`; for `main` functions.

    Args:
        others: further exceptions whose text is meant for the user, such as a parser's ValueError.
    """
    told: tuple[type[Exception], ...] = (DBBenchError, *others)
    try:
        yield
    except told as error:
        raise SystemExit(f"error: {error}") from None


def one_line(error: BaseException) -> str:
    """Return an error's text on one line; other libraries' errors often have several."""
    return " ".join(str(error).split())


def load_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that libraries raise for a missing, damaged or unknown model or adapter."""
    from safetensors import SafetensorError  # for a truncated file; derives from Exception alone

    return ImportError, OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError


def why_not_loaded(error: BaseException) -> str:
    """Return why a model was not loaded, as text; the error is one of `load_errors`."""
    if type(error).__name__ == "SafetensorError":
        return f"a file of weights is damaged or cut short ({one_line(error)}); copy or download it again"
    return f"{error} is missing or unknown" if isinstance(error, KeyError) else one_line(error)


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Turn the errors of loading a model, or a part of one, into a ConfigError.

    Args:
        what: what is loaded, for the error's text: `"the model 'me/agent'"`.

    Raises:
        ConfigError: if the block fails with one of `load_errors`.
    """
    try:
        yield
    except load_errors() as error:
        raise ConfigError(f"{what} cannot be loaded: {why_not_loaded(error)}") from None
