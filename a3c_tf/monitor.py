"""PolicyMonitor: evaluates the global weights, writes what happens, saves, and says stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from a3c_tf.agents.base import Agent
from a3c_tf.checkpoints import save_agent, save_checkpoint
from a3c_tf.errors import at_the_end
from a3c_tf.evaluation import Evaluator, Scores
from a3c_tf.parameters import ParameterServer, Snapshot
from a3c_tf.reporting import Reporter
from a3c_tf.telemetry import write_summary
from a3c_tf.worker import RunningWorker

# hook(agent, scores, step), called after an evaluation; ends the run if it returns "stop"
EvaluationHook = Callable[[Agent, Scores, int], object]

POLL_SECONDS = 0.05
# Points of a curve lie 1/200 of the run so far apart: dense at first, and few in a long run.
WRITE_SECONDS, MAX_WRITE_SECONDS = 0.5, 30.0


@dataclass
class Progress:
    """Where a run stands; what a resumed run goes on from.

    Attributes:
        elapsed: seconds of training, those before a resume included.
        best_score: highest mean of an evaluation, or None.
        last_score: mean of the last evaluation, or None.
        last_evaluation: global step of the last evaluation.
        stopped_by: "steps", "successful_score", "evaluation_hook", "error" or "interrupt"; None
            while it runs.
        workers_started: how many workers have reported steps.
    """

    elapsed: float = 0.0
    best_score: float | None = None
    last_score: float | None = None
    last_evaluation: int = 0
    stopped_by: str | None = None
    workers_started: int = 0


class PolicyMonitor:
    """Watches a run from a thread of its own, with nets of its own.

    Args:
        directory: the run directory.
        server: the global weights.
        workers: whose reports and episodes are collected.
        agent: a clone of the agent for the monitor alone.
        evaluator: evaluates `agent`; None for no evaluation.
        eval_interval: environment steps between evaluations; 0 for none but the last.
        eval_seconds: if more than 0, seconds between evaluations, in place of the steps.
        successful_score: mean evaluation return at which the run ends, or None.
        checkpoint_seconds: seconds between checkpoints.
        progress: where a resumed run stands.
        save_best: whether `best/` is kept.
        evaluation_hooks: called after each evaluation.
        logger: for what happens.
    """

    def __init__(
        self,
        directory: Path,
        server: ParameterServer,
        workers: Sequence[RunningWorker],
        agent: Agent,
        evaluator: Evaluator | None,
        eval_interval: int,
        eval_seconds: float = 0.0,
        successful_score: float | None = None,
        checkpoint_seconds: float = 60.0,
        progress: Progress | None = None,
        save_best: bool = True,
        evaluation_hooks: Sequence[EvaluationHook] = (),
        logger: logging.Logger | None = None,
    ) -> None:
        self.progress = progress or Progress()
        self._directory = directory
        self._server = server
        self._agent = agent
        self._connection = server.connect(agent.weights)
        self._evaluator = evaluator
        self._eval_interval = eval_interval
        self._eval_seconds = eval_seconds
        self._successful_score = successful_score
        self._checkpoint_seconds = checkpoint_seconds
        self._save_best = save_best
        self._evaluation_hooks = evaluation_hooks
        self._logger = logger or logging.getLogger("a3c_tf")
        self._reporter = Reporter(directory, server, workers, self._logger)
        self._elapsed_before = self.progress.elapsed
        self._start_clocks()
        self._first_step = server.global_step

    # While the run goes on, in the monitor's thread ---------------------------------------

    def run(self, wait_for_stop: Callable[[float], bool]) -> None:
        """Does what is due until `wait_for_stop(seconds)` says that the run is over."""
        self._start_clocks()
        while not wait_for_stop(POLL_SECONDS):
            now = monotonic()
            self._read_clock(now)
            if now - self._reporter.last_write >= self._write_interval():
                self._reporter.write_training(now)
                self.progress.workers_started = self._reporter.workers_started
            if self._evaluation_is_due(now):
                self.evaluate(lambda: wait_for_stop(0.0))
                if self.progress.stopped_by:
                    return
            if now - self._last_checkpoint >= self._checkpoint_seconds:
                self.checkpoint()

    def evaluate(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Evaluates the globals of this moment, unless interrupted, and keeps what is best."""
        if self._evaluator is None:
            return
        self._last_evaluation_time = monotonic()
        self._connection.pull()
        step, episodes = self._connection.step, self._connection.episodes
        scores = self._evaluator.run(should_stop)
        self._read_clock(monotonic())
        if scores is None:
            return
        self.progress.last_evaluation = step
        self._reporter.write_scores(scores, step, episodes, self.progress.elapsed)
        mean = scores.summary()["mean"]
        self.progress.last_score = mean
        best = self.progress.best_score
        if best is None or mean > best:
            self.progress.best_score = mean
            self._logger.info("best score at step %d: %s, before %s", step, mean, best)
            if self._save_best:
                save_agent(self._agent, self._directory / "best")
        for hook in self._evaluation_hooks:
            if hook(self._agent, scores, step) == "stop":
                self.progress.stopped_by = "evaluation_hook"
        if self._successful_score is not None and mean >= self._successful_score:
            save_agent(self._agent, self._directory / "successful")
            self.progress.stopped_by = "successful_score"

    def checkpoint(self) -> None:
        """Writes the full training state of this moment."""
        self._last_checkpoint = monotonic()
        snapshot = self._server.snapshot()
        self._hold(snapshot)
        progress = {
            "elapsed": self.progress.elapsed,
            "best_score": self.progress.best_score,
            "last_score": self.progress.last_score,
            "last_evaluation": self.progress.last_evaluation,
        }
        save_checkpoint(self._directory / "checkpoints", self._agent, snapshot, progress)

    # After the workers have ended, in the main thread --------------------------------------

    def finish(self, stopped_by: str) -> None:
        """Evaluates at the end, saves the agent and a checkpoint, and writes the summary.

        Args:
            stopped_by: "steps", "error" or "interrupt"; an evaluation that has reached the
                successful score goes before "steps".
        """
        ending = stopped_by
        with at_the_end(
            lambda: self._save_last(ending),
            lambda: write_summary(self._directory, self.summary()),
            self._evaluator.close if self._evaluator else lambda: None,
            self._reporter.close,
        ):
            try:
                self._reporter.write_training(monotonic())
                behind = self.progress.last_evaluation < self._server.global_step
                if stopped_by == "steps" and behind and not self.progress.stopped_by:
                    self.evaluate()
            except BaseException as error:
                ending = "interrupt" if isinstance(error, KeyboardInterrupt) else "error"
                raise

    def summary(self) -> dict[str, Any]:
        """The run in one line: what `summary.json` holds."""
        seconds = self.progress.elapsed - self._elapsed_before
        steps = self._server.global_step - self._first_step
        return {
            "steps": self._server.global_step,
            "episodes": self._server.episodes,
            "seconds": round(self.progress.elapsed, 3),
            "steps_per_second": round(steps / seconds, 1) if seconds > 0 else 0.0,
            "best_score": self.progress.best_score,
            "final_score": self.progress.last_score,
            "stopped_by": self.progress.stopped_by,
            "time": self._reporter.time_shares(),
        }

    def _save_last(self, ending: str) -> None:
        if not (ending == "steps" and self.progress.stopped_by):
            self.progress.stopped_by = ending
        snapshot = self._server.snapshot()
        self._hold(snapshot)
        suffix = "finish" if ending == "steps" else "except"
        last = self._directory / f"{snapshot.global_step}_{suffix}"
        with at_the_end(self.checkpoint):  # the one may fail without the other
            save_agent(self._agent, last)

    # Parts ----------------------------------------------------------------------------------

    def _start_clocks(self) -> None:
        self._start = self._last_checkpoint = self._last_evaluation_time = monotonic()
        self._reporter.restart_clock()

    def _read_clock(self, now: float) -> None:
        self.progress.elapsed = self._elapsed_before + now - self._start

    def _evaluation_is_due(self, now: float) -> bool:
        if self._evaluator is None:
            return False
        if self._eval_seconds > 0:
            return now - self._last_evaluation_time >= self._eval_seconds
        due = self.progress.last_evaluation + self._eval_interval
        return self._eval_interval > 0 and self._server.global_step >= due

    def _write_interval(self) -> float:
        return min(max(WRITE_SECONDS, self.progress.elapsed / 200), MAX_WRITE_SECONDS)

    def _hold(self, snapshot: Snapshot) -> None:
        for variable, array in zip(self._agent.weights, snapshot.weights, strict=True):
            variable.assign(array)
        self._agent.hyperparameters = snapshot.hyperparameters  # a hook may have changed them
