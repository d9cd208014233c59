"""Errors that a user can mend, each one line of text, and hints for them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A setting that cannot be used; the text is one line that says the way out."""


class CheckpointError(Exception):
    """A checkpoint is missing, incomplete or altered."""


def near(name: str, known: Iterable[str]) -> str:
    """A hint at names spelled like this one, in brackets; empty if there are none."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (near: {', '.join(matches)})" if matches else ""
