"""What the commands have in common: exit codes, and lines for a person."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

EVAL_ENVS = 20  # of an evaluation; more gain little, as the last episode is waited for anyway

OK, FAILED, USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


def usage(error: Exception) -> int:
    """Says in one line what cannot be used; returns the exit code for that."""
    print(f"error: {error}", file=sys.stderr)
    return USAGE


def show(console: Console, line: str) -> None:
    """Prints a line for a person, if there is one."""
    with even_if_nobody_reads():
        console.print(line, highlight=False, soft_wrap=True)


@contextmanager
def even_if_nobody_reads() -> Iterator[None]:
    """What is shown in the block, and after it, goes nowhere if it cannot be written.

    As with `| head`, or with a terminal that was closed. The training goes on.
    """
    try:
        yield
    except (OSError, SystemExit):  # Rich makes a SystemExit of a broken pipe
        _silence()


@contextmanager
def answer() -> Iterator[None]:
    """What is printed in the block is what the program was asked for: if it is lost, that shows.

    Raises:
        SystemExit: it cannot be written, which has been said; or nobody reads, as with `| head`.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        _silence()
        if not isinstance(error, BrokenPipeError):
            print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(FAILED) from error


def _silence() -> None:
    """From now on, standard output goes nowhere: not even Python complains at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
