"""PolicyMonitor: evaluates the global weights, writes what happens, saves, and says stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from a3c_tf.agents.base import Agent
from a3c_tf.backends.turns import FixedOrder
from a3c_tf.checkpoints import save_agent, save_checkpoint
from a3c_tf.errors import at_the_end, in_time
from a3c_tf.evaluation import Evaluator, Scores
from a3c_tf.parameters import ParameterServer, Snapshot
from a3c_tf.pictures import Pictures
from a3c_tf.progress import Progress
from a3c_tf.reporting import Reporter
from a3c_tf.reports import RunningWorker
from a3c_tf.telemetry import write_summary

# hook(agent, scores, step), called after an evaluation; ends the run if it returns "stop"
EvaluationHook = Callable[[Agent, Scores, int], object]

POLL_SECONDS = 0.05
LOCK_SECONDS = 3.0  # for a hook to let go of the global weights at the end
CLOSE_SECONDS = 2.0  # for the environments of the evaluation
STEPS_PER_SECOND = 1000  # where time is counted in steps
MAX_FAILED_SAVES = 3  # in a row


def run_clock(server: ParameterServer, order: FixedOrder | None) -> Callable[[], float]:
    """Seconds, for what is due after so many of them; counted in steps where there is an order."""
    return (lambda: server.global_step / STEPS_PER_SECOND) if order else monotonic


class PolicyMonitor:
    """Watches a run from a thread of its own, with nets of its own.

    Args:
        directory: the run directory.
        server: the global weights.
        workers: whose reports and episodes are collected.
        agent: a clone of the agent for the monitor alone.
        evaluator: evaluates `agent`; None for no evaluation.
        pictures: what is made of evaluations; None if there are none.
        eval_interval: environment steps between evaluations; 0 for none but the last.
        eval_seconds: if more than 0, seconds between evaluations, in place of the steps.
        successful_score: mean evaluation return at which the run ends, or None.
        checkpoint_seconds: seconds between checkpoints.
        progress: where the run stands.
        save_best: whether `best/` is kept.
        evaluation_hooks: called after each evaluation.
        settings: of the run, for TensorBoard.
        logger: for what happens.
        resumed: whether the run goes on from a checkpoint.
        order: in which workers and monitor take turns; None where they do not. With one, what
            goes by seconds goes by global steps instead, a thousand to the second, and
            checkpoints hold the workers too, so that the run can be gone on with as if it had not
            been broken off.
    """

    def __init__(
        self,
        directory: Path,
        server: ParameterServer,
        workers: Sequence[RunningWorker],
        agent: Agent,
        evaluator: Evaluator | None,
        pictures: Pictures | None,
        *,
        eval_interval: int,
        eval_seconds: float,
        successful_score: float | None,
        checkpoint_seconds: float,
        progress: Progress,
        save_best: bool,
        evaluation_hooks: Sequence[EvaluationHook],
        settings: Mapping[str, Any],
        logger: logging.Logger,
        resumed: bool,
        order: FixedOrder | None,
    ) -> None:
        self.progress = progress
        self._directory = directory
        self._server = server
        self._workers = workers
        self._order = order
        self._agent = agent
        self._evaluator = evaluator
        self._pictures = pictures
        self._now = run_clock(server, order)
        self._eval_interval = eval_interval
        self._eval_seconds = eval_seconds
        self._successful_score = successful_score
        self._checkpoint_seconds = checkpoint_seconds
        self._save_best = save_best
        self._evaluation_hooks = evaluation_hooks
        self._logger = logger
        self._reporter = Reporter(
            directory, server, workers, logger, settings, resumed, on_a_grid=order is not None
        )
        self._failed_saves = 0
        if self.progress.last_row:  # the program before this one may not have come to it
            self._reporter.write_row(self.progress.last_row)
        self._elapsed_before = self.progress.elapsed
        self._last_checkpoint = self._last_evaluation_time = 0.0
        self._start_clocks()
        self._first_step = server.global_step

    # While the run goes on, in the monitor's thread ---------------------------------------

    def run(self, wait_for_stop: Callable[[float], bool]) -> None:
        """Does what is due until `wait_for_stop(seconds)` says that the run is over."""
        self._start_clocks()
        self._reporter.write_settings()
        order = self._order
        if order is None:
            while not wait_for_stop(POLL_SECONDS) and self._poll(wait_for_stop):
                pass
            return
        member, getting_ready, going_on = len(self._workers), True, True
        with at_the_end(lambda: order.leave(member)):
            while going_on:
                with order.turn(member, lambda: wait_for_stop(0.0)):
                    if wait_for_stop(0.0):
                        return
                    going_on = getting_ready or self._poll(wait_for_stop)
                    getting_ready = False

    def _poll(self, wait_for_stop: Callable[[float], bool]) -> bool:
        """Does what is due; whether the run goes on."""
        now = self._now()
        self._read_clock()
        if self._reporter.is_due(now, self.progress.elapsed):
            self._reporter.write_training()
            self.progress.workers_started = self._reporter.workers_started
        if self._evaluation_is_due(now):
            self.evaluate(lambda: wait_for_stop(0.0))
            if self.progress.stopped_by:
                return False
        if now - self._last_checkpoint >= self._checkpoint_seconds:
            self.checkpoint()
        return True

    def evaluate(self, should_stop: Callable[[], bool] = lambda: False, last: bool = False) -> None:
        """Evaluates the globals of this moment, unless interrupted, and keeps what is best.

        A checkpoint of what was evaluated comes before the row: whenever the program is killed,
        no row is of a later step than the checkpoint that the run is resumed from, and none is
        missing.

        Args:
            should_stop: interrupts it.
            last: whether the run is over; `finish` then makes the pictures.
        """
        if self._evaluator is None:
            return
        began = self._last_evaluation_time = self._now()
        snapshot = self._server.snapshot()
        self._hold(snapshot)
        step = snapshot.global_step
        observer = self._pictures.begin(last) if self._pictures else None
        scores = self._evaluator.run(should_stop, step, observer)
        self._read_clock()
        if scores is None:
            return
        row = self._reporter.row(scores, step, snapshot.episodes, self.progress.elapsed)
        mean = row["mean"]
        self.progress.last_evaluation, self.progress.last_score = step, mean
        self.progress.last_row = row
        best = self.progress.best_score
        if best is None or mean > best:
            self.progress.best_score = mean
            self._logger.info("best score at step %d: %s, before %s", step, mean, best)
            if self._save_best:
                self._save(lambda: save_agent(self._agent, self._directory / "best"))
        self._save_checkpoint(snapshot)
        self._last_checkpoint = began
        self._reporter.write_row(row)
        if self._pictures:
            self._pictures.write_sample(self._reporter.events, step)
        for hook in self._evaluation_hooks:
            answer = hook(self._agent, scores, step)
            if isinstance(answer, str) and answer == "stop":
                self.progress.stopped_by = "evaluation_hook"
        if self._successful_score is not None and mean >= self._successful_score:
            self._save(lambda: save_agent(self._agent, self._directory / "successful"))
            self.progress.stopped_by = "successful_score"
        if self._pictures and not self.progress.stopped_by and not last:
            self._pictures.make(self._reporter.events, step, should_stop)

    def checkpoint(self) -> None:
        """Writes the full training state of this moment."""
        self._last_checkpoint = self._now()
        snapshot = self._server.snapshot()
        self._hold(snapshot)
        self._save_checkpoint(snapshot)

    def _save_checkpoint(self, snapshot: Snapshot) -> None:
        root, progress = self._directory / "checkpoints", self.progress.to_json()
        workers = [worker.state() for worker in self._workers] if self._order else []
        self._save(lambda: save_checkpoint(root, self._agent, snapshot, progress, workers=workers))

    def _save(self, save: Callable[[], object]) -> None:
        """Saves; a failure is reported, since the next one may succeed, and the third is raised."""
        try:
            save()
        except OSError as error:
            self._failed_saves += 1
            text = f"could not save at step {self._server.global_step}: {error}"
            self._logger.error(text)
            self._reporter.write_text("error", text)
            if self._failed_saves >= MAX_FAILED_SAVES:
                raise
        else:
            self._failed_saves = 0

    # After the workers have ended, in the main thread --------------------------------------

    def finish(self, stopped_by: str, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Evaluates at the end, saves the agent and a checkpoint, and writes the summary.

        Args:
            stopped_by: "steps", "error" or "interrupt"; an evaluation that has reached the
                successful score goes before "steps".
            should_stop: ends the evaluation, which makes it an "interrupt".
        """
        ending, asked = stopped_by, False

        def asked_to_stop() -> bool:
            nonlocal asked
            asked = asked or should_stop()
            return asked

        def look(behind: bool) -> None:
            if behind and not self.progress.stopped_by:
                self.evaluate(lambda: asked, last=True)
            if not asked:
                self._make_last_pictures(lambda: asked)

        with at_the_end(
            lambda: self._save_last(ending),
            lambda: write_summary(self._directory, self.summary()),
            self._close_evaluator,
            self._reporter.close,
        ):
            try:
                self._reporter.write_training()
                behind = self.progress.last_evaluation < self._server.global_step
                if stopped_by == "steps":
                    in_time(
                        "the last evaluation", lambda: look(behind), CLOSE_SECONDS, asked_to_stop
                    )
                    ending = "interrupt" if asked else ending
            except BaseException as error:
                interrupted = asked or isinstance(error, KeyboardInterrupt)
                ending = "interrupt" if interrupted else "error"
                raise

    def _make_last_pictures(self, should_stop: Callable[[], bool]) -> None:
        if self._pictures:
            snapshot = self._server.snapshot()
            self._hold(snapshot)
            self._pictures.make(self._reporter.events, snapshot.global_step, should_stop, last=True)

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
        snapshot = self._server.snapshot(LOCK_SECONDS)
        self._hold(snapshot)
        suffix = "finish" if ending == "steps" else "except"
        last = self._directory / f"{snapshot.global_step}_{suffix}"
        self._failed_saves = MAX_FAILED_SAVES  # no later one may succeed
        # The one may fail without the other.
        with at_the_end(lambda: self._save_checkpoint(snapshot)):
            save_agent(self._agent, last)

    # Parts ----------------------------------------------------------------------------------

    def _close_evaluator(self) -> None:
        if self._evaluator is not None:
            in_time("an environment's close", self._evaluator.close, CLOSE_SECONDS)

    def _start_clocks(self) -> None:
        self._start, now = monotonic(), self._now()
        self._last_checkpoint, self._last_evaluation_time = now, now
        self._reporter.restart_clock(now)

    def _read_clock(self) -> None:
        self.progress.elapsed = self._elapsed_before + monotonic() - self._start

    def _evaluation_is_due(self, now: float) -> bool:
        if self._evaluator is None:
            return False
        if self._eval_seconds > 0:
            return now - self._last_evaluation_time >= self._eval_seconds
        due = self.progress.last_evaluation + self._eval_interval
        return self._eval_interval > 0 and self._server.global_step >= due

    def _hold(self, snapshot: Snapshot) -> None:
        for variable, array in zip(self._agent.weights, snapshot.weights, strict=True):
            variable.assign(array)
        self._agent.hyperparameters = snapshot.hyperparameters  # a hook may have changed them
