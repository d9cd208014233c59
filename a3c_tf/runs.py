"""Runs that have been written: settings, scores, and how they ended. For tables, plots, notebooks.

import pandas as pd
from a3c_tf.runs import load_runs

for run in load_runs("runs/CartPole-v1"):
    print(run.directory, run.settings["learning_rate"], run.ended, run.best)
    pd.DataFrame(run.scores).plot("steps", "mean")
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a3c_tf.errors import ConfigError, near
from a3c_tf.run_directory import read_config

UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Run:
    """What a run directory says. Files that are missing or damaged leave their part empty.

    Attributes:
        directory: the run directory.
        settings: those of `config.yaml`, by name.
        scores: the rows of `scores.txt`, ordered by steps, by column; those before any damage.
        summary: the content of `summary.json`.
        damaged: names of the files that cannot be read.
    """

    directory: Path
    settings: dict[str, Any]
    scores: list[dict[str, float]]
    summary: dict[str, Any]
    damaged: tuple[str, ...]

    @property
    def env(self) -> str:
        """The environment's id; "-" where there is no `config.yaml`."""
        return str(self.settings.get("env", "-"))

    @property
    def seed(self) -> int | None:
        """The run's seed."""
        return self.settings.get("seed")

    @property
    def steps(self) -> int | None:
        """Environment steps at the end; of an unfinished run, at its last evaluation."""
        return self._last("steps", "steps")

    @property
    def minutes(self) -> float | None:
        """Minutes of training until then."""
        seconds = self._last("seconds", "elapsed")
        return None if seconds is None else seconds / 60

    @property
    def best(self) -> float | None:
        """The highest score: the mean return of an evaluation's episodes."""
        return max((row["mean"] for row in self.scores), default=None)

    @property
    def final(self) -> float | None:
        """The last score."""
        return self.scores[-1]["mean"] if self.scores else None

    @property
    def ended(self) -> str:
        """What ended the run, or "unfinished": it goes on, or was killed."""
        return str(self.summary["stopped_by"]) if self._finished else UNFINISHED

    @property
    def _finished(self) -> bool:
        """A run that was gone on with has the summary of its first end until its next one."""
        evaluated = self.scores[-1]["steps"] if self.scores else 0
        return bool(self.summary) and self.summary["steps"] >= evaluated

    def _last(self, in_summary: str, column: str) -> Any:
        if self._finished:
            return self.summary[in_summary]
        return self.scores[-1][column] if self.scores else None


def load_runs(*paths: str | Path) -> list[Run]:
    """The runs in some directories: each is a run's own, or holds runs somewhere below it.

    Every run comes once, in the order of the paths, then of the names.

    Raises:
        ConfigError: a path that is no directory, or holds no run.
    """
    runs: dict[Path, Run] = {}
    for path in map(Path, paths):
        try:
            if not path.is_dir():
                siblings = path.parent.iterdir() if path.parent.is_dir() else ()
                hint = near(path.name, [sibling.name for sibling in siblings])
                raise ConfigError(f"{path} is no directory{hint}")
            files = (*path.rglob("scores.txt"), *path.rglob("config.yaml"))
        except OSError as error:  # a name that is too long, a directory that cannot be read
            raise ConfigError(f"{path}: {error.strerror}") from error
        found = [_load(directory) for directory in sorted({file.parent for file in files})]
        # Other programs have a config.yaml as well, and so has a run that never began.
        found = [run for run in found if run.settings or (run.directory / "scores.txt").is_file()]
        if not found:
            raise ConfigError(f"{path} holds no run: no scores.txt there or below")
        for run in found:
            runs.setdefault(run.directory.resolve(), run)
    return list(runs.values())


def differing_settings(runs: Sequence[Run]) -> dict[Path, str]:
    """For each run, the settings in which some of these runs differ, the seed left out.

    Returns:
        A text such as "t_max=5 workers=2" by the run's directory; "" if all agree, and for a run
        whose settings are not known.
    """
    known = [run.settings for run in runs if run.settings]
    names = dict.fromkeys(name for settings in known for name in settings if name != "seed")
    differing = [
        name for name in names if any(s.get(name) != known[0].get(name) for s in known[1:])
    ]
    return {
        run.directory: " ".join(f"{n}={run.settings.get(n)}" for n in differing if run.settings)
        for run in runs
    }


def _load(directory: Path) -> Run:
    settings: dict[str, Any] = {}
    scores: list[dict[str, float]] = []
    summary: dict[str, Any] = {}
    damaged = []
    if (directory / "config.yaml").is_file():
        try:
            settings = read_config(directory)
        except ConfigError:
            damaged.append("config.yaml")
    try:
        for row in _rows((directory / "scores.txt").read_text()):
            scores.append(row)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, OverflowError):
        damaged.append("scores.txt")
    try:
        summary = _summary((directory / "summary.json").read_text())
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        damaged.append("summary.json")
    return Run(directory, settings, scores, summary, tuple(damaged))


def _rows(text: str) -> Iterator[dict[str, float]]:
    """Rows of a scores.txt; raises a ValueError or OverflowError at the first damage."""
    whole = text[: text.rfind("\n") + 1]  # the last row may be half written
    columns, *rows = (line.split("\t") for line in whole.splitlines())
    if missing := {"steps", "elapsed", "mean", "stdev"} - set(columns):
        raise ValueError(f"no columns {missing}")
    for row in rows:
        values = dict(zip(columns, map(float, row), strict=True))
        if not (0 <= values["steps"] < 2**63 and math.isfinite(values["elapsed"])):
            raise ValueError(f"steps {values['steps']}, elapsed {values['elapsed']}")
        yield values | {"steps": int(values["steps"])}


def _summary(text: str) -> dict[str, Any]:
    """The content of a summary.json; raises a ValueError if it is damaged."""
    try:
        summary = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    kinds: dict[str, Any] = {"steps": int, "seconds": (int, float), "stopped_by": str}
    if not isinstance(summary, dict) or not all(
        isinstance(summary.get(name), kind) for name, kind in kinds.items()
    ):
        raise ValueError("no summary of a run")
    if not (0 <= summary["steps"] < 2**63 and 0 <= summary["seconds"] < 2**63):
        raise ValueError(f"steps {summary['steps']}, seconds {summary['seconds']}")
    return summary
