"""Lets a few workers compute at a time, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turns:
    """Like `threading.BoundedSemaphore`, but fair.

    A worker that ends its turn asks for the next one at once. A semaphore would give it to that
    one, which is awake, again and again, and others would never step.

    Args:
        count: how many may have their turn at the same time.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        """Waits for a turn."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()  # until it is handed over

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Hands the turn to whoever has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
