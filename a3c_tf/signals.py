"""Ctrl-C and its like as a request to end the run, not as an exception at any place."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP from a terminal that was closed; handled like Ctrl-C."""


class RaiseOnce:
    """A signal handler for a program's main thread: the first signal raises what it stands for.

    Later ones do nothing: the program is ending already.

    Attributes:
        error: what has been raised, or None.
    """

    def __init__(self) -> None:
        self.error: type[KeyboardInterrupt] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        if self.error is None:
            self.error = _exception_of(number)
            raise self.error

    def install(self) -> None:
        """Handles the signals that would end the program."""
        for number in _taken():
            signal.signal(number, self)

    @staticmethod
    def ignore() -> None:
        """The program has nothing more to do than to end, with the code that it has chosen."""
        for number in _usual():
            if isinstance(signal.getsignal(number), RaiseOnce):
                signal.signal(number, signal.SIG_IGN)


class StopRequest:
    """Whether a signal has asked for the end, and by which exception the run is to end."""

    def __init__(self) -> None:
        self.error: type[KeyboardInterrupt] | None = None

    def __bool__(self) -> bool:
        return self.error is not None

    def raise_if_made(self) -> None:
        """Raises what the signal stands for. In the main thread, where it does no harm."""
        if self.error is not None:
            raise self.error


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Within the block, signals that would end the program make a request instead.

    A KeyboardInterrupt in the middle of a save, or a second one while threads are waited for,
    would lose what is being saved. Signals for which the program has a handler of its own, or
    which it ignores (`nohup`, a shell's background job), are left alone.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return

    before = {number: signal.getsignal(number) for number in _taken()}

    def handle(number: int, frame: FrameType | None) -> None:
        request.error = request.error or _exception_of(number)
        for handler in before.values():
            if isinstance(handler, RaiseOnce):
                handler.error = handler.error or request.error

    for number, handler in before.items():
        if isinstance(handler, RaiseOnce):  # some code may have swallowed what it raised
            request.error = request.error or handler.error
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exception_of(number: int) -> type[KeyboardInterrupt]:
    return KeyboardInterrupt if number == signal.SIGINT else Terminated


def _usual() -> dict[int, Any]:
    """The signals that end a program, and how they are handled where nobody has changed that."""
    usual: dict[str, Any] = {"SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL}
    usual["SIGHUP"] = signal.SIG_DFL  # not there on Windows
    return {getattr(signal, name): usual[name] for name in usual if hasattr(signal, name)}


def _taken() -> list[int]:
    """Those of them that are handled as usual, or by `RaiseOnce`."""
    handlers = {number: signal.getsignal(number) for number in _usual()}
    return [
        number
        for number, usual in _usual().items()
        if handlers[number] is usual or isinstance(handlers[number], RaiseOnce)
    ]


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Within the block, this thread and the programs that it starts are not interrupted."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _usual())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive_signals() -> None:
    """In the fork server, which was started with signals held back, and for its children.

    A terminal or a system sends its signals to every process of a program. The parent kills
    children that do not end, and learns from the fork server that they have.
    """
    for number in _usual():
        signal.signal(number, signal.SIG_IGN)  # what has come meanwhile is forgotten
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _usual())


def leave_to_the_parent() -> None:
    """In a worker process: Ctrl-C reaches every process of a terminal, but the parent ends the run.

    A handler that does nothing, and not SIG_IGN, which the environments' own programs would
    inherit.
    """
    for number in _usual():
        signal.signal(number, lambda number, frame: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _usual())


def thread_stack(ident: int) -> str:
    """Where a thread of this process is, as text."""
    frame = sys._current_frames().get(ident)
    return "".join(traceback.format_stack(frame)) if frame else "it is not running"


# Windows has neither the signal nor the function.
_STACK_SIGNAL = getattr(signal, "SIGUSR1", None) if hasattr(faulthandler, "register") else None
_STACK_SECONDS = 1.0
_READY = "ready\n"


def dump_stack_on_request(path: Path) -> None:
    """In a worker process: lets `read_stack` find out where it is, even if it is stuck."""
    if _STACK_SIGNAL is not None:
        file = path.open("w")
        faulthandler.register(_STACK_SIGNAL, file)
        file.write(_READY)
        file.flush()


def read_stack(pid: int, path: Path) -> str:
    """Where a process that has called `dump_stack_on_request` is, as text."""
    if _STACK_SIGNAL is None:
        return "this system cannot say"
    if not path.is_file():
        return "it has ended"
    if not path.read_text():  # the signal would kill it
        return "it has not started yet"
    before = path.read_text()
    with suppress(ProcessLookupError):
        os.kill(pid, _STACK_SIGNAL)
    deadline = monotonic() + _STACK_SECONDS
    while (text := path.read_text()) == before and monotonic() < deadline:
        sleep(0.05)
    return text.removeprefix(before) or "it does not answer"
