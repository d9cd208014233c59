"""Lists runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from a3c_tf.commands.output import OK, answer, usage
from a3c_tf.errors import ConfigError
from a3c_tf.flags import parse_flags
from a3c_tf.runs import UNFINISHED, Run, differing_settings, load_runs

WIDTH = 10_000  # of the table, at most
STYLES = {"error": "red", UNFINISHED: "yellow"}


@dataclass(frozen=True)
class RunsConfig:
    """Lists runs: settings that differ between runs of an environment, scores, what ended them."""

    directory: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Directory that holds runs, somewhere below it."""
    json: bool = False
    """A JSON array on standard output and nothing else: an object for each run."""


def runs(arguments: Sequence[str]) -> int:
    """`a3c-tf runs`, `scripts/runs.py`."""
    config = parse_flags(RunsConfig, arguments, "runs")
    try:
        found = load_runs(config.directory)
    except ConfigError as error:
        return usage(error)
    with answer():
        if config.json:
            print(json.dumps([_as_json(run) for run in found], default=str))
        else:
            _print_table(found, config.directory)
    return OK


def _print_table(found: Sequence[Run], directory: Path) -> None:
    # A run is a line, however long: paths that are folded could not be copied.
    console = Console(width=WIDTH)
    table = Table(box=None, pad_edge=False)
    for name in ("run", "env", "settings", "seed"):
        table.add_column(name)
    for name in ("steps", "minutes", "best", "final"):
        table.add_column(name, justify="right")
    table.add_column("ended by")
    by_env = sorted(found, key=lambda run: run.env)
    for _, group in groupby(by_env, lambda run: run.env):
        members = list(group)
        settings = differing_settings(members)
        for run in members:
            table.add_row(*_cells(run, directory, settings[run.directory]))
    console.print(table)


def _cells(run: Run, directory: Path, settings: str) -> list[Text]:
    name = "." if run.directory == directory else str(run.directory.relative_to(directory))
    ended = Text(run.ended, STYLES.get(run.ended, ""))
    if run.damaged:
        ended.append(f"; damaged: {', '.join(run.damaged)}", "red")
    texts = [name, run.env, settings or "-", _text(run.seed)]
    texts += [_text(run.steps, ","), _text(run.minutes, ",.1f")]
    texts += [_text(run.best, ",.2f"), _text(run.final, ",.2f")]
    return [*map(Text, texts), ended]


def _text(value: float | None, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def _as_json(run: Run) -> dict[str, Any]:
    names = ("env", "settings", "seed", "steps", "minutes", "best", "final", "ended", "damaged")
    values = {"run": str(run.directory)} | {name: getattr(run, name) for name in names}
    return {name: None if _is_nan(value) else value for name, value in values.items()}


def _is_nan(value: object) -> bool:
    """Whether it is a number that JSON does not have."""
    return isinstance(value, float) and not math.isfinite(value)
