"""Curves of runs: return against environment steps and against minutes, over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from a3c_tf.runs import Run, differing_settings

X_AXES = {"steps": "environment steps (of all workers)", "minutes": "training time (minutes)"}
Y_AXIS = "episode return (mean of an evaluation)"
# Colours by Okabe and Ito, which colour-blind people can tell apart. In black and white, lines and
# markers count: as many groups look different as the product of their numbers.
COLOURS = ("#0072B2", "#E69F00", "#000000", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MARKERS_ON_A_LINE = 12
LEGEND_WIDTH = 110  # characters
THIN = 0.8


def draw_curves(runs: Sequence[Run]) -> Figure:
    """Draws a row of two panels for each environment.

    Runs whose settings agree but for the seed are one line, their mean, as far as all of them
    reach; each of them is a thin line. Between evaluations, lines are straight.

    Args:
        runs: with at least one evaluation each.

    Returns:
        A figure to save, or to show in a notebook.
    """
    by_env: dict[str, list[Run]] = {}
    for run in runs:
        by_env.setdefault(run.env, []).append(run)
    groups = [_grouped(of_env) for of_env in by_env.values()]
    heights = [4.0 + 0.25 * sum(label.count("\n") + 1 for label in group) for group in groups]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    rows = figure.subfigures(len(groups), squeeze=False, height_ratios=heights)[:, 0]
    for row, env, of_env in zip(rows, by_env, groups, strict=True):
        title = "environment not known: no config.yaml" if env == "-" else env
        row.suptitle(title, parse_math=False)  # a dollar sign is one
        _draw_row(row, of_env)
    return figure


def _draw_row(figure: SubFigure, groups: dict[str, list[Run]]) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    handles: list[Any] = []
    for style, group in zip(_styles(), groups.values(), strict=False):
        on_both = [_draw(axes, group, x, style) for axes, x in zip(panels, X_AXES, strict=True)]
        handles.append(on_both[0])
    labels = list(groups)
    if any(len(group) > 1 for group in groups.values()):
        handles.append(Line2D([], [], color="grey", linewidth=THIN))
        labels.append("each run; the mean goes as far as all of them do")
    for axes, label in zip(panels, X_AXES.values(), strict=True):
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    panels[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[0].set_ylabel(Y_AXIS)
    figure.legend(handles, labels, loc="outside lower center")


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by what distinguishes their settings, as text for the legend; of unknown ones, each."""
    settings = differing_settings(runs)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        name = settings[run.directory] if run.settings else str(run.directory)
        groups.setdefault(name, []).append(run)
    return {_label(name, group): group for name, group in groups.items()}


def _label(name: str, group: Sequence[Run]) -> str:
    """Which runs they are, how many, and what the band is."""
    distinct = len({str(run.seed) for run in group if run.seed is not None}) == len(group)
    count = f"{len(group)} {'seed' if distinct else 'run'}{'s' * (len(group) > 1)}"
    if len(group) == 1:
        what = f"{count}, band ± standard deviation of an evaluation's episodes"
    else:
        what = f"mean of {count}, band ± their standard deviation"
    # A dollar sign would start a formula.
    return fill(f"{name}: {what}".removeprefix(": "), LEGEND_WIDTH).replace("$", r"\$")


def _styles() -> Iterator[dict[str, str]]:
    for colour, line, marker in zip(cycle(COLOURS), cycle(LINES), cycle(MARKERS), strict=False):
        yield {"color": colour, "linestyle": line, "marker": marker}


def _draw(axes: Axes, group: Sequence[Run], x: str, style: dict[str, Any]) -> Any:
    """Draws a group, and returns its line and band, for a legend."""
    tables = [_table(run, x) for run in group]
    if len(tables) == 1:
        mean, spread = tables[0]["mean"], tables[0]["stdev"]
    else:
        for table in tables:
            axes.plot(table["mean"], **style, linewidth=THIN, markersize=3, alpha=0.5)
        seeds = pd.concat([table["mean"] for table in tables], axis=1).sort_index()
        # Evaluations of different seeds are at slightly different steps.
        seeds = seeds.interpolate("index", limit_area="inside").dropna()
        mean, spread = seeds.mean(axis=1), seeds.std(axis=1)
    every = max(1, len(mean) // MARKERS_ON_A_LINE)
    (line,) = axes.plot(mean, **style, linewidth=2, markersize=6, markevery=every)
    low, high = mean - spread, mean + spread
    band = axes.fill_between(mean.index, low, high, color=style["color"], alpha=0.15, linewidth=0)
    return band, line


def _table(run: Run, x: str) -> pd.DataFrame:
    """The run's scores, with steps or minutes as the index."""
    table = pd.DataFrame(run.scores)
    table["minutes"] = table["elapsed"] / 60
    return table.drop_duplicates(x, keep="last").set_index(x)
