"""The library's exceptions, drawn as a tree:

```
DBBenchError
├── TaskError          a task file or a task in it is wrong
├── ConfigError        a setting is wrong
├── EngineError        nothing can generate tokens
├── StorageError       the disk is full
├── RankError          another rank of the run failed
└── DatabaseError      the database cannot be used
    └── EnvironmentFault   it broke in the middle of an episode
        └── ServerCrash    by a statement of that episode
```

A statement that MySQL refuses is none of these: it is an observation for the agent.
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
    """Nothing can generate tokens: no server answers, or the weights give none."""


class StorageError(DBBenchError):
    """A file cannot be written, because no space is left for it."""


class RankError(DBBenchError):
    """Nothing is wrong on this rank, but another one failed and cannot go on."""


class DatabaseError(DBBenchError):
    """A database cannot be started, reached, or used with the rights it gives."""


class EnvironmentFault(DatabaseError):
    """The database failed under an episode through no fault of the agent.

    The episode ends as `Status.ENVIRONMENT_FAULT`, gets no reward and stays out of the update.

    Attributes:
        observation: what the agent reads if it turns out that its own statement caused the failure; `None` if
            that cannot be.
        error_code: the number of the error that `observation` reports.
        final: trying again would not help.
        still: the server stood still meanwhile, which says nothing about the statement.
        down: statements of our own fail as well; the server is waited for.
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
    """A statement of the episode has ended the database server; it is not executed again.

    The episode ends as `Status.SERVER_CRASH`, with a reward. Where anything but an episode's statements is
    executed, such as gold SQL, it is a fault like any other.
    """

    def __init__(self) -> None:
        super().__init__("a statement of its own has ended the database server", final=True)


@contextmanager
def user_errors(*others: type[Exception]) -> Iterator[None]:
    """Ends the program with the error's text alone where a `DBBenchError` comes up; for `main` functions.

    Args:
        others: errors of other libraries that also speak to the user, such as a parser's ValueError.
    """
    told: tuple[type[Exception], ...] = (DBBenchError, *others)
    try:
        yield
    except told as error:
        raise SystemExit(f"error: {error}") from None


def one_line(error: BaseException) -> str:
    """The text of another library's error, which often has several lines."""
    return " ".join(str(error).split())


def load_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that libraries raise for a missing, damaged or unknown model or adapter."""
    from safetensors import SafetensorError  # of a file that was cut short; an Exception of its own

    return ImportError, OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError


def why_not_loaded(error: BaseException) -> str:
    """Return the text of one of `load_errors`."""
    if type(error).__name__ == "SafetensorError":
        return f"a file of weights is damaged or cut short ({one_line(error)}); copy or download it again"
    return f"{error} is missing or unknown" if isinstance(error, KeyError) else one_line(error)


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Around what loads a model or a part of it.

    Args:
        what: for the error's text, as in "the model 'me/agent'".

    Raises:
        ConfigError: if the block fails with one of `load_errors`.
    """
    try:
        yield
    except load_errors() as error:
        raise ConfigError(f"{what} cannot be loaded: {why_not_loaded(error)}") from None
