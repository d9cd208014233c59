"""Errors that a user can mend, each one line of text, and hints for them."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic

JOIN_SECONDS = 0.05


class ConfigError(ValueError):
    """A setting that cannot be used; the text is one line that says the way out."""


class CheckpointError(Exception):
    """A checkpoint is missing, incomplete or altered."""


class NotFiniteError(FloatingPointError):
    """An observation, reward, loss or gradient is NaN or infinite; nothing has been pushed."""


class StalledError(RuntimeError):
    """A worker has made no step for too long."""


@contextmanager
def at_the_end(*actions: Callable[[], None]) -> Iterator[None]:
    """Calls each of some functions when the block ends; an error of theirs hides no other."""
    first: BaseException | None = None
    try:
        yield
    except BaseException as error:
        first = error
    for action in actions:
        try:
            action()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


def near(name: str, known: Iterable[str]) -> str:
    """A hint at names spelled like this one, in brackets; empty if there are none."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (near: {', '.join(matches)})" if matches else ""


def in_time(
    action: Callable[[], None], seconds: float, counting: Callable[[], bool] = lambda: True
) -> None:
    """Calls a function that might never return, and waits for it so long.

    Args:
        action: called in a thread of its own.
        seconds: how long it may take.
        counting: from when on this is true.

    Raises:
        TimeoutError: it has not returned; it is left alone in a thread that ends with the program.
        BaseException: what the function raised.
    """
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    deadline = None
    while thread.is_alive():
        if deadline is None and counting():
            deadline = monotonic() + seconds
        if deadline is not None and monotonic() > deadline:
            raise TimeoutError(f"{action!r} has not returned in {seconds:g} s")
        thread.join(JOIN_SECONDS)
    if errors:
        raise errors[0]
