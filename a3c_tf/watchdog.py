"""Finds workers that make no step any more, and says where they are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic

from a3c_tf.errors import StalledError
from a3c_tf.worker import RunningWorker

START_SECONDS = 60.0  # a worker process may take long to start on a busy machine


class Watchdog:
    """Reports a worker that has made no step for a while; ends the run after twice that.

    Args:
        workers: who are watched.
        timeout: seconds without a step, before the first one at least a minute; 0 for no watching.
        logger: gets the worker's name and where its thread is.
    """

    def __init__(
        self, workers: Sequence[RunningWorker], timeout: float, logger: logging.Logger
    ) -> None:
        self._workers = workers
        self._timeout = timeout
        self._logger = logger
        self.start()

    def start(self) -> None:
        """The workers begin now."""
        self._seen = [(worker.beats, monotonic()) for worker in self._workers]
        self._reported: set[int] = set()

    def look(self) -> None:
        """Compares with what was seen before.

        Raises:
            StalledError: a worker has made no step for twice the timeout.
        """
        if not self._timeout:
            return
        now = monotonic()
        for i, worker in enumerate(self._workers):
            beats, since = self._seen[i]
            if worker.beats != beats:
                self._seen[i] = worker.beats, now
                self._reported.discard(i)
                continue
            still = now - since
            timeout = self._timeout if beats else max(self._timeout, START_SECONDS)
            what = f"worker {worker.index} has made no step for {still:.0f} s"
            if still > 2 * timeout:
                raise StalledError(f"{what} (stall_timeout is {self._timeout:g} s)")
            if still > timeout and i not in self._reported:
                self._reported.add(i)
                self._logger.error("%s; it is here:\n%s", what, worker.stack())
