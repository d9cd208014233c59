"""Draws the scores of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from a3c_tf.commands.output import OK, show, usage
from a3c_tf.errors import ConfigError
from a3c_tf.flags import parse_flags
from a3c_tf.runs import load_runs

KINDS = (".png", ".svg")
NAME = "curves.png"
MOST_ENVS = 40  # in one picture; it takes ten seconds then


@dataclass(frozen=True)
class PlotConfig:
    """Draws return against environment steps and against minutes; seeds of equal settings as one.

    Environments are drawn below each other.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")] = (
        Path("runs"),
    )
    """Directories of runs, or directories that hold runs, somewhere below them."""
    out: Path | None = None
    """File to write, .png or .svg. By default curves.png in RUN, or here if there are several."""


def plot(arguments: Sequence[str]) -> int:
    """`a3c-tf plot`, `scripts/plot.py`."""
    config = parse_flags(PlotConfig, arguments, "plot")
    console = Console()
    out = config.out or (config.runs[0] / NAME if len(config.runs) == 1 else Path(NAME))
    try:
        if out.suffix.lower() not in KINDS:
            raise ConfigError(f"--out is {out}; it must end in {' or '.join(KINDS)}")
        runs = load_runs(*config.runs)
        drawn = [run for run in runs if run.scores]
        if not drawn:
            raise ConfigError(f"no evaluation yet in {', '.join(map(str, config.runs))}")
        envs = {run.env for run in drawn}
        if len(envs) > MOST_ENVS:
            raise ConfigError(
                f"RUN holds runs of {len(envs)} environments; name runs of at most {MOST_ENVS}"
            )
        try:
            from a3c_tf.plotting import draw_curves
        except ImportError as error:
            raise ConfigError(
                f"plot needs matplotlib and pandas ({error}): pip install 'a3c_tf[plot]'"
            ) from error
        figure = draw_curves(drawn)
        try:
            figure.savefig(out, dpi=150)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"--out {out} cannot be written: {reason}") from error
    except ConfigError as error:
        return usage(error)
    for run in runs:
        if not run.scores:
            show(console, f"left out, without an evaluation: {run.directory}")
    show(console, f"curves: {out}")
    return OK
