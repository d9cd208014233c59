"""What a run writes while it goes on: TensorBoard events, scores.txt, summary.json."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

SCORE_COLUMNS = ("steps", "episodes", "elapsed", "mean", "median", "stdev", "max", "min")


class EventLog:
    """Scalars for TensorBoard; every write carries its global step.

    TensorBoard's own writer is used directly: it needs no TensorFlow operation, and it writes
    in a thread of its own.

    Args:
        directory: the run directory.
    """

    def __init__(self, directory: Path) -> None:
        self._writer = EventFileWriter(str(directory), flush_secs=2)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes values by tag."""
        now = time.time()
        for tag, value in values.items():
            event = Event(wall_time=now, step=step, summary=scalar_pb(tag, value))
            self._writer.add_event(event)

    def close(self) -> None:
        """Flushes and closes the file."""
        self._writer.close()


class ScoreLog:
    """`scores.txt`: tab-separated, one row an evaluation, ordered by steps, only appended to.

    Args:
        directory: the run directory. A file that is there is gone on with.
        statistics: names of the columns that follow `SCORE_COLUMNS`.
    """

    def __init__(self, directory: Path, statistics: Sequence[str]) -> None:
        self._path = directory / "scores.txt"
        self._columns = (*SCORE_COLUMNS, *statistics)
        if not self._path.exists():
            self._append(self._columns)

    def append(self, row: Mapping[str, float]) -> None:
        """Adds a row; a column without a value is left as nan."""
        self._append([row.get(column, float("nan")) for column in self._columns])

    def _append(self, values: Sequence[Any]) -> None:
        with self._path.open("a") as file:
            file.write("\t".join(str(value) for value in values) + "\n")


def write_summary(directory: Path, summary: Mapping[str, Any]) -> None:
    """Writes `summary.json`, whole or not at all."""
    path = directory / "summary.json"
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(summary, indent=2) + "\n")
    temporary.replace(path)
