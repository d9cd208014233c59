"""Errors that a user can mend, each one line of text, and hints for them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol


class ConfigError(ValueError):
    """A setting that cannot be used; the text is one line that says the way out."""


class CheckpointError(Exception):
    """A checkpoint is missing, incomplete or altered."""


class Closeable(Protocol):
    """Something that must be closed."""

    def close(self) -> None:
        """Closes it."""


@contextmanager
def closed_after(*things: Closeable) -> Iterator[None]:
    """Closes things when the block ends, each of them; an error of closing hides no other."""
    try:
        yield
    except BaseException:
        for thing in things:
            with suppress(Exception):
                thing.close()
        raise
    first: Exception | None = None
    for thing in things:
        try:
            thing.close()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


def near(name: str, known: Iterable[str]) -> str:
    """A hint at names spelled like this one, in brackets; empty if there are none."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (near: {', '.join(matches)})" if matches else ""
