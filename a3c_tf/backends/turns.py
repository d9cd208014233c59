"""Who may compute: a few workers at a time, or one after the other in a fixed order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POLL_SECONDS = 0.1  # between two looks at whether the run is over


class Turns:
    """A few at a time, first come, first served.

    A worker that ends its turn asks for the next one at once. A semaphore would give it to that
    one, which is awake, again and again, and others would never step.

    Args:
        count: how many may have their turn at the same time.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    @contextmanager
    def turn(self, member: int, should_stop: Callable[[], bool]) -> Iterator[None]:
        """Waits for a turn, or for the end of the run, and hands it on afterwards."""
        held = self._wait(should_stop)
        try:
            yield
        finally:
            if held:
                self._hand_on()

    def _wait(self, should_stop: Callable[[], bool]) -> bool:
        """Whether a turn has been got, and not just the end of the run."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        while not turn.acquire(timeout=POLL_SECONDS):  # until it is handed over
            if should_stop():
                with self._lock:
                    if turn in self._waiting:
                        self._waiting.remove(turn)
                        return False
        return True

    def _hand_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1

    def leave(self, member: int) -> None:
        """The member takes no more turns."""


class FixedOrder:
    """One at a time, in turn, for ever the same: with it threads do the same in every run.

    Args:
        members: how many take part; they are 0 .. members - 1.
        first: whose turn it is after the first round, in which all get ready.
    """

    def __init__(self, members: int, first: int = 0) -> None:
        self._members = list(range(members))
        self._current = 0
        self._first: int | None = first
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, member: int, should_stop: Callable[[], bool]) -> Iterator[None]:
        """Waits for the member's turn, or for the end of the run, and hands it on afterwards."""
        with self._changed:
            while self._current != member and not should_stop():
                self._changed.wait(POLL_SECONDS)
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
        place = (self._members.index(self._current) + 1) % len(self._members)
        self._current = self._members[place]
        if place == 0 and self._first is not None:
            self._current = self._first if self._first in self._members else self._current
            self._first = None
        self._changed.notify_all()
