"""Runs some threads and the monitor until the run is over, and ends them all."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from a3c_tf.quiet import tf

TICK_SECONDS = 0.1
GRACE_SECONDS = 5.0  # for threads to return after the stop; then they are named and left

# work(should_stop): one worker's thread
Work = Callable[[Callable[[], bool]], None]
# report(who, error): the first error, as soon as it is there
OnError = Callable[[str, BaseException], None]


def supervise(
    works: Sequence[Work],
    monitor: Callable[[Callable[[float], bool]], None],
    tick: Callable[[], None] = lambda: None,
    on_error: OnError = lambda who, error: None,
    on_stuck: Callable[[str], None] = lambda who: None,
) -> None:
    """Runs one thread for each of `works`, and the monitor, under a `tf.train.Coordinator`.

    The run is over when all of them have returned, when one of them or the monitor raises, when
    the monitor returns, or when `tick` raises.

    Args:
        works: called with a function that says whether to stop.
        monitor: called with a function that waits for so many seconds or for the stop, and says
            whether to stop; may end the run by returning.
        tick: called ten times a second in the calling thread.
        on_error: called with "worker 1", "monitor" or "main", and the first error of any thread.
        on_stuck: called with the name of each thread that does not return in 5 s.

    Raises:
        BaseException: what `tick` raised; else the first error of any thread, as itself, when all
            threads have ended or are left alone.
    """
    coordinator = tf.train.Coordinator(clean_stop_exception_types=())
    lock = threading.Lock()
    errors: list[BaseException] = []

    def note(who: str, error: BaseException) -> None:
        with lock:
            errors.append(error)
            first = len(errors) == 1
        if first:  # what follows from it is of no interest
            on_error(who, error)

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # an environment may well raise SystemExit
            note(threading.current_thread().name, error)
            coordinator.request_stop(sys.exc_info())

    def watch() -> None:
        monitor(coordinator.wait_for_stop)
        coordinator.request_stop()

    def thread(name: str, function: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=guarded, args=(function,), name=name, daemon=True)

    workers = [
        thread(f"worker {i}", lambda work=work: work(coordinator.should_stop))  # type: ignore[misc]
        for i, work in enumerate(works)
    ]
    watcher = thread("monitor", watch)
    interrupt = None
    try:
        tick()  # what is due before anything has begun
        for started in (*workers, watcher):
            started.start()
        while any(worker.is_alive() for worker in workers):
            tick()
            if coordinator.wait_for_stop(TICK_SECONDS):
                break
        if not coordinator.should_stop():  # all is done; what the monitor is at may take a while
            coordinator.request_stop()
            while watcher.is_alive():
                tick()
                watcher.join(TICK_SECONDS)
    except BaseException as error:  # Ctrl-C, or an error of `tick`
        interrupt = error
        note("main", error)
    coordinator.request_stop()
    # The coordinator's own waiting sleeps ever longer between its looks.
    deadline = monotonic() + GRACE_SECONDS
    for started in (*workers, watcher):
        if started.ident is not None:
            started.join(max(0.0, deadline - monotonic()))
    for started in (*workers, watcher):
        if started.is_alive():
            on_stuck(started.name)
    if interrupt is not None:
        raise interrupt
    coordinator.raise_requested_exception()
    if errors:  # after the monitor had ended the run: the coordinator keeps no such
        raise errors[0]
