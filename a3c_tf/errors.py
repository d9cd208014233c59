"""Errors that a user can mend, each one line of text, and hints for them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """A setting that cannot be used; the text is one line that says the way out."""


class CheckpointError(Exception):
    """A checkpoint is missing, incomplete or altered."""


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
