"""What the workers report, written as curves, rows and log lines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from a3c_tf.dashboard import as_hyperparameters, as_markdown, layout
from a3c_tf.envs.runner import Episode
from a3c_tf.evaluation import Scores
from a3c_tf.parameters import ParameterServer
from a3c_tf.reports import TIMES, Report, RunningWorker
from a3c_tf.telemetry import SUMMARY, EventLog, ScoreLog

# Points of a curve lie 1/200 of the run so far apart: dense at first, and few in a long run.
WRITE_SECONDS, MAX_WRITE_SECONDS = 0.5, 30.0


class Reporter:
    """Collects what workers did, and writes means over it.

    Args:
        directory: the run directory.
        server: has the global step and the agent.
        workers: whose reports and episodes are collected.
        logger: gets a line for an episode of worker 0, at most one at each `write_training`.
        settings: of the run, for TensorBoard.
        resumed: whether the run goes on from a checkpoint.
        on_a_grid: write at times that do not depend on when the program has begun.

    Attributes:
        events: what TensorBoard reads.
    """

    def __init__(
        self,
        directory: Path,
        server: ParameterServer,
        workers: Sequence[RunningWorker],
        logger: logging.Logger,
        settings: Mapping[str, Any],
        resumed: bool = False,
        on_a_grid: bool = False,
    ) -> None:
        self._directory = directory
        self._server = server
        self._workers = workers
        self._logger = logger
        self.events = EventLog(directory, server.global_step if resumed else None)
        self._settings = settings
        self._first_step = server.global_step
        self._score_log = ScoreLog(directory, workers[0].statistics)
        self._statistics: dict[str, float] = {}
        self._total = Report()
        self._worker_steps = [0] * len(workers)
        self._on_a_grid = on_a_grid
        self._last_due = 0.0
        self.restart_clock(0.0)

    def write_settings(self) -> None:
        """Writes what TensorBoard shows of the run as a whole, at the step where it began."""
        step = self._first_step
        self.events.text("settings", as_markdown(self._settings), step)
        about = as_hyperparameters(self._settings, self._directory)
        self.events.summaries([layout(), *about], step)

    def restart_clock(self, now: float) -> None:
        """The workers begin now, in the time of `is_due`."""
        self._last_due = now
        self._last_write = monotonic()
        self._last_step = self._server.global_step

    def is_due(self, now: float, elapsed: float) -> bool:
        """Whether it is time for `write_training`, and if so, begins to wait for the next time."""
        interval = min(max(WRITE_SECONDS, elapsed / 200), MAX_WRITE_SECONDS)
        due = now - self._last_due >= interval
        if self._on_a_grid:  # so that a resumed run writes where it would have without the break
            interval = WRITE_SECONDS
            while interval < min(now / 200, MAX_WRITE_SECONDS):
                interval *= 2
            due = now // interval > self._last_due // interval
        if due:
            self._last_due = now
        return due

    def write_training(self) -> None:
        """Writes means over what the workers did since the last time."""
        now = monotonic()
        step, seconds = self._server.global_step, now - self._last_write
        reports = [worker.take_report() for worker in self._workers]
        episodes = [worker.take_episodes() for worker in self._workers]
        values = _episode_means([e for of_worker in episodes for e in of_worker])
        values |= self._means(reports)
        scheduled = self._server.agent.scheduled(step)
        values |= {f"train/{name}": value for name, value in scheduled.items()}
        if seconds > 0:
            values["time/steps_per_second"] = (step - self._last_step) / seconds
            for worker, report in zip(self._workers, reports, strict=True):
                tag = f"workers/{worker.index}/steps_per_second"
                values[tag] = report.steps / seconds
        self.events.scalars(values, step)
        for index, report in enumerate(reports):
            self._worker_steps[index] += report.steps
        if episodes[0]:
            self._log_episode(episodes[0][-1], step)
        self._last_write, self._last_step = now, step

    def row(self, scores: Scores, step: int, episodes: int, elapsed: float) -> dict[str, float]:
        """An evaluation of the weights of a global step, as a row of scores.txt."""
        counts = {"steps": step, "episodes": episodes, "elapsed": round(elapsed, 3)}
        length = {"episode_length": float(scores.lengths.mean())}
        return counts | scores.summary() | length | self._statistics

    def write_row(self, row: dict[str, float]) -> None:
        """Writes an evaluation, unless that has been done before, to TensorBoard as well."""
        if self._score_log.append(row):
            names = (*SUMMARY, "episode_length")
            values = {name: row[name] for name in names}
            self._logger.info("evaluation at step %d: %s", row["steps"], values)
            tags = {f"eval/{name}": value for name, value in values.items()}
            self.events.scalars(tags, int(row["steps"]))

    def write_text(self, tag: str, text: str) -> None:
        """Writes a text to TensorBoard, at the global step."""
        self.events.text(tag, text, self._server.global_step)

    @property
    def workers_started(self) -> int:
        """How many workers have reported steps."""
        return sum(steps > 0 for steps in self._worker_steps)

    def time_shares(self) -> dict[str, float]:
        """Where the workers' time went, as shares of the whole; empty if there was none."""
        return {part: round(share, 4) for part, share in _shares(self._total).items()}

    def close(self) -> None:
        """Flushes and closes what is written."""
        self.events.close()

    def _means(self, reports: Sequence[Report]) -> dict[str, float]:
        """Means over the iterations, and the shares of the workers' time."""
        sums = Report()
        for report in reports:
            sums.add(report)
        if not sums.iterations:
            return {}
        self._total.add(sums)
        means = np.ravel(sums.statistics / sums.iterations).tolist()
        self._statistics = dict(zip(self._workers[0].statistics, means, strict=True))
        values = dict(self._statistics)
        values["train/policy_lag"] = sums.lag / sums.iterations
        return values | {f"time/{part}": share for part, share in _shares(sums).items()}

    def _log_episode(self, episode: Episode, step: int) -> None:
        self._logger.info(
            "outdir:%s global_step:%s local_step:%s R:%s statistics:%s",
            self._directory,
            step,
            self._worker_steps[0],
            episode.episode_return,
            self._statistics,
        )


def _episode_means(episodes: Sequence[Episode]) -> dict[str, float]:
    if not episodes:
        return {}
    return {
        "rollout/episode_return": float(np.mean([e.episode_return for e in episodes])),
        "rollout/episode_length": float(np.mean([e.length for e in episodes])),
    }


def _shares(report: Report) -> dict[str, float]:
    seconds = {part: getattr(report, part) for part in TIMES}
    total = sum(seconds.values())
    return {part: spent / total for part, spent in seconds.items()} if total > 0 else {}
