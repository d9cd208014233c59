"""Workers as threads of this process."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager

from a3c_tf.agents.base import Agent
from a3c_tf.backends.plan import WorkerPlan
from a3c_tf.backends.turns import Turns
from a3c_tf.cores import core_count
from a3c_tf.parameters import ParameterServer
from a3c_tf.worker import Worker


class ThreadWorker:
    """A worker that runs in the thread which calls `run`.

    Args:
        plan: what it is to do.
        agent: is cloned.
        server: the global weights.
        turn: held during an iteration.
        like: a worker whose traces are used again.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        agent: Agent,
        server: ParameterServer,
        turn: AbstractContextManager[object],
        like: ThreadWorker | None = None,
    ) -> None:
        local = agent.clone()
        self._plan = plan
        self._server = server
        self._turn = turn
        self._worker: Worker = plan.build(
            local, server.connect(local.weights, plan.index), like._worker if like else None
        )
        self.index = plan.index
        self.beats = 0
        self._thread: int | None = None
        self.statistics = self._worker.statistics
        self.take_report = self._worker.take_report
        self.take_episodes = self._worker.take_episodes

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Iterates until the steps are done or `should_stop`."""
        self._thread = threading.get_ident()

        def interrupted() -> bool:
            self.beats += 1
            return should_stop()

        self._plan.run(
            self._worker,
            lambda: should_stop() or self._server.global_step >= self._plan.steps,
            interrupted,
            self._turn,
        )

    def stack(self) -> str:
        """Where its thread is, as text."""
        frame = sys._current_frames().get(self._thread or 0)
        return "".join(traceback.format_stack(frame)) if frame else "not running"


def thread_workers(
    plans: list[WorkerPlan], agent: Agent, server: ParameterServer
) -> list[ThreadWorker]:
    """Builds the workers, in the main thread; one trace serves them all."""
    # More workers than cores at a time would only take the interpreter lock from each other.
    turn = Turns(core_count())
    workers: list[ThreadWorker] = []
    for plan in plans:
        workers.append(ThreadWorker(plan, agent, server, turn, workers[0] if workers else None))
    return workers
