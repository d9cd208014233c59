"""Finds workers that make no step any more, and says where they are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from a3c_tf.errors import StalledError

START_SECONDS = 60.0  # a worker process may take long to start on a busy machine


class Watched(Protocol):
    """A worker, or the evaluation.

    Attributes:
        name: in reports.
    """

    name: str

    @property
    def beats(self) -> int:
        """Rises with every step that it makes."""

    @property
    def active(self) -> bool:
        """Whether it should be making steps: not while it waits for its turn, or has ended."""

    def stack(self) -> str:
        """Where it is in its program, as text."""


class Watchdog:
    """Reports who has made no step for a while; ends the run after twice that.

    Args:
        watched: the workers, and the evaluation.
        timeout: seconds without a step, before the first one at least a minute; 0 for no watching.
        logger: gets the name and where its thread is.
    """

    def __init__(self, watched: Sequence[Watched], timeout: float, logger: logging.Logger) -> None:
        self._watched = watched
        self._timeout = timeout
        self._logger = logger
        self._seen = [(worker.beats, monotonic()) for worker in watched]
        self._reported: set[int] = set()

    def look(self) -> None:
        """Compares with what was seen before.

        Raises:
            StalledError: one of them has made no step for twice the timeout.
        """
        if not self._timeout:
            return
        now = monotonic()
        for i, worker in enumerate(self._watched):
            beats, since = self._seen[i]
            if worker.beats != beats or not worker.active:
                self._seen[i] = worker.beats, now
                self._reported.discard(i)
                continue
            still = now - since
            timeout = self._timeout if beats else max(self._timeout, START_SECONDS)
            what = f"{worker.name} has made no step for {still:.0f} s"
            if still > 2 * timeout:
                raise StalledError(f"{what} (stall_timeout is {self._timeout:g} s)")
            if still > timeout and i not in self._reported:
                self._reported.add(i)
                self._logger.error("%s; it is here:\n%s", what, worker.stack())
