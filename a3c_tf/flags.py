"""Flags of the commands, read by tyro from a dataclass."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

Config = TypeVar("Config")


def parse_flags(
    kind: type[Config], arguments: Sequence[str], command: str, default: Any = tyro.MISSING_NONPROP
) -> Config:
    """The settings of a command, from its flags.

    Help and errors are plain text unless a terminal shows both.

    Args:
        kind: a dataclass, whose fields are the flags.
        arguments: the command line after the command's name.
        command: its name.
        default: a `kind`, whose values hold where no flag is given; by default those of the class.

    Raises:
        SystemExit: --help (code 0), or a flag that does not exist or has a wrong value (code 2).
    """
    terminal = sys.stdout.isatty() and sys.stderr.isatty()
    tyro._experimental_options["utf8_boxes"] = terminal
    tyro._experimental_options["ansi_codes"] = terminal and not os.environ.get("NO_COLOR")
    return tyro.cli(kind, args=list(arguments), default=default, prog=f"a3c-tf {command}")
