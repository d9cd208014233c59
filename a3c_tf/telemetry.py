"""What a run writes while it goes on: TensorBoard events, scores.txt, summary.json."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from a3c_tf.errors import ConfigError
from a3c_tf.films import Gif
from a3c_tf.quiet import tf

SUMMARY = ("mean", "median", "stdev", "max", "min")  # of the returns of an evaluation
SCORE_COLUMNS = ("steps", "episodes", "elapsed", *SUMMARY)


class EventLog:
    """What TensorBoard reads; everything is written with its global step and the time.

    TensorBoard's own writer is used directly: it needs no TensorFlow operation, and it writes
    in a thread of its own.

    Args:
        directory: the run directory.
        resumed_at: the global step at which a resumed run goes on: what an earlier program has
            written beyond it, and lost, TensorBoard then leaves out.
    """

    def __init__(self, directory: Path, resumed_at: int | None = None) -> None:
        self._writer = EventFileWriter(str(directory), flush_secs=2)
        # TensorBoard leaves something out at the second start of a run, not at its first.
        step = 0 if resumed_at is None else resumed_at + 1
        start = SessionLog(status=SessionLog.START)
        self._add(Event(wall_time=time.time(), step=step, session_log=start))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes values by tag, in one event."""
        self.summaries([scalar_pb(tag, value) for tag, value in values.items()], step)

    def histograms(self, samples: Mapping[str, npt.NDArray[Any]], step: int) -> None:
        """Writes the distribution of some finite numbers, by tag."""
        self.summaries([histogram_pb(tag, sample) for tag, sample in samples.items()], step)

    def image(self, tag: str, gif: Gif, step: int) -> None:
        """Writes an animated image."""
        # TensorBoard's own function for images takes pixels and makes a PNG of them. What is
        # encoded already goes into this older field, which every reader knows.
        image = Summary.Image(encoded_image_string=gif.data, width=gif.width, height=gif.height)
        self.summaries([Summary(value=[Summary.Value(tag=tag, image=image)])], step)

    def text(self, tag: str, text: str, step: int) -> None:
        """Writes a text, as Markdown."""
        self.summaries([text_pb(tag, text)], step)

    def summaries(self, summaries: Sequence[Summary], step: int) -> None:
        """Writes what goes into one event."""
        values = [value for summary in summaries for value in summary.value]
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Flushes and closes the file."""
        self._writer.close()

    def _add(self, event: Event) -> None:
        """Hands an event to the writer's thread.

        Raises:
            OSError: an earlier one could not be written.
        """
        try:
            self._writer.add_event(event)
        except tf.errors.OpError as error:  # its repr says nothing
            raise OSError(f"TensorBoard's events cannot be written: {error}") from error


class ScoreLog:
    """`scores.txt`: tab-separated, one row an evaluation, ordered by steps, only appended to.

    Args:
        directory: the run directory. A file that is there is gone on with.
        statistics: names of the columns that follow `SCORE_COLUMNS`.
    """

    def __init__(self, directory: Path, statistics: Sequence[str]) -> None:
        self._path = directory / "scores.txt"
        self._columns = (*SCORE_COLUMNS, *statistics)
        self._last_step = -1
        if self._path.exists():
            self._go_on()
        else:
            self._append(self._columns)

    def append(self, row: Mapping[str, float]) -> bool:
        """Adds a row and returns True, unless there is one of this step or a later one.

        A column without a value is left as nan.
        """
        if row["steps"] <= self._last_step:
            return False
        self._append([row.get(column, float("nan")) for column in self._columns])
        self._last_step = int(row["steps"])
        return True

    def _go_on(self) -> None:
        """Takes the columns and the last step, and cuts off what comes after the last whole row.

        Raises:
            ConfigError: it is no such file.
        """
        lines = self._path.read_bytes().splitlines(keepends=True)
        if not lines or not lines[0].endswith(b"\n"):
            self._path.write_bytes(b"")
            self._append(self._columns)
            return
        columns = tuple(lines[0].decode(errors="replace").rstrip().split("\t"))
        if columns[: len(SCORE_COLUMNS)] != SCORE_COLUMNS:
            raise ConfigError(f"{self._path} does not begin with the scores' columns; move it away")
        self._columns = columns  # of another version, perhaps
        while len(lines) > 1:
            step = _step_of(lines[-1], len(columns))
            if step is not None:
                self._last_step = step
                break
            lines.pop()
        os.truncate(self._path, sum(map(len, lines)))

    def _append(self, values: Sequence[Any]) -> None:
        with self._path.open("a") as file:
            file.write("\t".join(str(value) for value in values) + "\n")


def _step_of(line: bytes, columns: int) -> int | None:
    """The global step of a row; None if it is not a whole one."""
    try:
        numbers = [float(cell) for cell in line.split(b"\t")]
        step = int(numbers[0])
    except (ValueError, OverflowError):
        return None
    return step if len(numbers) == columns and line.endswith(b"\n") else None


def write_summary(directory: Path, summary: Mapping[str, Any]) -> None:
    """Writes `summary.json`, whole or not at all."""
    path = directory / "summary.json"
    temporary = path.with_suffix(".partial")
    try:
        temporary.write_text(json.dumps(summary, indent=2) + "\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
