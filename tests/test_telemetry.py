"""Event files, scores.txt and summary.json."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

from a3c_tf.films import Gif
from a3c_tf.telemetry import SCORE_COLUMNS, EventLog, ScoreLog, write_summary


def test_events_are_read_back(tmp_path: Path) -> None:
    """By tag, each with the global step that it was written with."""
    log = EventLog(tmp_path)
    log.scalars({"loss/total": 0.5, "eval/mean": -3.0}, 10)
    log.scalars({"loss/total": 0.25}, 10**10)
    log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["tensors"] == ["loss/total", "eval/mean"]

    def read(tag: str) -> list[tuple[int, float]]:
        return [(e.step, e.tensor_proto.float_val[0]) for e in events.Tensors(tag)]

    assert read("loss/total") == [(10, 0.5), (10**10, 0.25)]
    assert read("eval/mean") == [(10, -3.0)]


def test_what_belongs_together_is_one_event(tmp_path: Path) -> None:
    """It is written by one call, with one time."""
    log = EventLog(tmp_path)
    log.scalars({f"tag/{i}": float(i) for i in range(9)}, 3)
    log.close()
    (file,) = tmp_path.iterdir()
    written = [event.summary.value for event in EventFileLoader(str(file)).Load()]
    assert [len(values) for values in written if values] == [9]


def test_images_and_histograms(tmp_path: Path) -> None:
    """An encoded image comes back as it was, with its size; counts are those of the numbers."""
    log = EventLog(tmp_path)
    log.image("eval/episode", Gif(b"GIF89a...", 30, 20), 5)
    log.histograms({"eval/values": np.array([0.0, 0.0, 3.0])}, 6)
    log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    (image,) = events.Images("eval/episode")
    assert (image.step, image.width, image.height) == (5, 30, 20)
    assert image.encoded_image_string == b"GIF89a..."
    (histogram,) = events.Tensors("eval/values")
    buckets = make_ndarray(histogram.tensor_proto)
    assert [list(bucket) for bucket in buckets if bucket[2]] == [
        [0.0, pytest.approx(0.1), 2.0],
        [pytest.approx(2.9), 3.0, 1.0],
    ]


def test_events_of_two_logs(tmp_path: Path) -> None:
    """A resumed run writes beside the file that is there."""
    for step in (1, 2):
        log = EventLog(tmp_path)
        log.scalars({"a": 1.0}, step)
        log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Tensors("a")] == [1, 2]


def rows(directory: Path) -> list[list[str]]:
    """The cells of scores.txt."""
    return [line.split("\t") for line in (directory / "scores.txt").read_text().splitlines()]


def test_scores(tmp_path: Path) -> None:
    """Tab-separated, the columns by name, nan where there is no value yet."""
    log = ScoreLog(tmp_path, ["loss/total"])
    log.append({"mean": 1.5, "steps": 10, "loss/total": -2.0})
    header, row = rows(tmp_path)
    assert header == [*SCORE_COLUMNS, "loss/total"]
    values = dict(zip(header, map(float, row), strict=True))
    assert (values["steps"], values["mean"], values["loss/total"]) == (10, 1.5, -2.0)
    assert math.isnan(values["median"])


def test_scores_are_gone_on_with(tmp_path: Path) -> None:
    """A second log appends to the first one's file, under the one header."""
    for step in (10, 20):
        ScoreLog(tmp_path, []).append({"steps": step})
    assert [row[0] for row in rows(tmp_path)] == ["steps", "10", "20"]


def test_scores_are_on_disk_at_once(tmp_path: Path) -> None:
    """Nothing waits for the log to be closed."""
    log = ScoreLog(tmp_path, [])
    assert len(rows(tmp_path)) == 1
    log.append({"steps": 1})
    assert len(rows(tmp_path)) == 2


def test_summary(tmp_path: Path) -> None:
    """JSON, replaced by a later one; nothing else is left in the directory."""
    for summary in ({"steps": 1, "best_score": None}, {"steps": 2, "best_score": 3.5}):
        write_summary(tmp_path, summary)
        assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_summary_that_fails(tmp_path: Path) -> None:
    """The one that is there stays whole."""
    write_summary(tmp_path, {"steps": 1})
    with pytest.raises(TypeError):
        write_summary(tmp_path, {"steps": object()})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 1}
