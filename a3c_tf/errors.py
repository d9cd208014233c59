"""Errors that a user can mend, each one line of text, and hints for them."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic


class ConfigError(ValueError):
    """A setting that cannot be used; the text is one line that says the way out."""


class CheckpointError(Exception):
    """A checkpoint is missing, incomplete or altered."""


class NotFiniteError(FloatingPointError):
    """An observation, reward, loss or gradient is NaN or infinite; nothing has been pushed."""


class StalledError(RuntimeError):
    """A worker has made no step for too long."""


class ExportError(Exception):
    """An exported policy does not do what the agent does, or cannot be loaded."""


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
    name: str,
    action: Callable[[], None],
    seconds: float,
    in_a_hurry: Callable[[], bool] = lambda: True,
) -> None:
    """Calls a function that might never return, and waits for it.

    Args:
        name: of the function, for the error.
        action: the function.
        seconds: how long it is waited for once there is a hurry.
        in_a_hurry: asked ten times a second.

    Raises:
        TimeoutError: it has not returned; it is left alone in a thread that ends with the program.
        BaseException: what the function raised, or `in_a_hurry`.
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
        if deadline is None and in_a_hurry():
            deadline = monotonic() + seconds
        if deadline is not None and monotonic() > deadline:
            raise TimeoutError(f"{name} has not returned in {seconds:g} s")
        thread.join(0.1)
    if errors:
        raise errors[0]
