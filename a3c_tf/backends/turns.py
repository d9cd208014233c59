"""Who may compute: a few workers at a time, or one after the other in a fixed order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class FixedOrder:
    """One at a time, in turn, for ever the same: with it threads do the same in every run.

    Args:
        members: how many take part; they are 0 .. members - 1.
        first: whose turn it is.
    """

    POLL_SECONDS = 0.1

    def __init__(self, members: int, first: int = 0) -> None:
        self._members = list(range(members))
        self._current = first
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, member: int, should_stop: Callable[[], bool]) -> Iterator[None]:
        """Waits for the member's turn, or for the end of the run, and hands it on afterwards."""
        with self._changed:
            while self._current != member and not should_stop():
                self._changed.wait(self.POLL_SECONDS)
        try:
            yield
        finally:
            with self._changed:
                if self._current == member:
                    self._pass_on()

    def leave(self, member: int) -> None:
        """The member takes no more turns."""
        with self._changed:
            if self._current == member:
                self._pass_on()
            self._members.remove(member)

    def _pass_on(self) -> None:
        place = self._members.index(self._current) + 1
        self._current = self._members[place % len(self._members)]
        self._changed.notify_all()
