"""Workers as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from a3c_tf.agents.base import Agent
from a3c_tf.backends.plan import WorkerPlan
from a3c_tf.backends.turns import FixedOrder, Turns
from a3c_tf.cores import core_count
from a3c_tf.errors import at_the_end
from a3c_tf.parameters import ParameterServer
from a3c_tf.signals import thread_stack
from a3c_tf.worker import Worker


class ThreadWorker:
    """A worker that runs in the thread which calls `run`.

    Args:
        plan: what it is to do.
        agent: is cloned.
        server: the global weights.
        turns: how many compute at a time; or the order in which they do.
        like: a worker whose traces are used again.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        agent: Agent,
        server: ParameterServer,
        turns: Turns | FixedOrder,
        like: ThreadWorker | None = None,
    ) -> None:
        local = agent.clone()
        self._plan = plan
        self._server = server
        self._turns = turns
        self._worker: Worker = plan.build(
            local, server.connect(local.weights, plan.index), like._worker if like else None
        )
        self.index = plan.index
        self.name = f"worker {plan.index}"
        self.beats = 0
        self.active = False
        self._thread = 0
        self.statistics = self._worker.statistics
        self.take_report = self._worker.take_report
        self.take_episodes = self._worker.take_episodes

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Iterates until the steps are done or `should_stop`."""
        self._thread = threading.get_ident()
        in_order = isinstance(self._turns, FixedOrder)

        def done() -> bool:
            return should_stop() or self._server.global_step >= self._plan.steps

        def interrupted() -> bool:
            self.beats += 1
            # From the middle of a rollout an ordered run could not be gone on with.
            return not in_order and should_stop()

        @contextmanager
        def turn() -> Iterator[None]:
            self.active = False  # while it waits; not after its last turn, when it closes
            with self._turns.turn(self.index, should_stop):
                self.active = True
                yield

        def leave() -> None:
            self.active = False
            self._turns.leave(self.index)

        with at_the_end(leave):
            self._plan.run(self._worker, done, interrupted, turn)

    def state(self) -> dict[str, Any]:
        """Where the worker is, between two of its turns."""
        if self._worker.runner is None and self._plan.state is not None:
            return self._plan.state  # it has not begun; there it is going to be
        return self._worker.state()

    def stack(self) -> str:
        """Where its thread is, as text."""
        return thread_stack(self._thread)


def thread_workers(
    plans: list[WorkerPlan],
    agent: Agent,
    server: ParameterServer,
    order: FixedOrder | None = None,
) -> list[ThreadWorker]:
    """Builds the workers, in the main thread; one trace serves them all."""
    # More workers than cores at a time would only take the interpreter lock from each other.
    turns = order or Turns(core_count())
    workers: list[ThreadWorker] = []
    for plan in plans:
        workers.append(ThreadWorker(plan, agent, server, turns, workers[0] if workers else None))
    return workers
