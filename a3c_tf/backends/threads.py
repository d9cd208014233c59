"""Workers as threads under a `tf.train.Coordinator`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence

from a3c_tf.envs.runner import EnvRunner
from a3c_tf.monitor import PolicyMonitor
from a3c_tf.quiet import tf
from a3c_tf.worker import Worker

TICK_SECONDS = 0.1
GRACE_SECONDS = 10.0  # for a thread to return after the stop; then it is named and left

# open_runner(worker_index, should_stop) -> the worker's environments
OpenRunner = Callable[[int, Callable[[], bool]], EnvRunner]


def run_threads(
    workers: Sequence[Worker],
    monitor: PolicyMonitor,
    open_runner: OpenRunner,
    enough: Callable[[], bool],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Runs the workers and the monitor until the steps are done or one of them says stop.

    Args:
        workers: built and traced.
        monitor: may end the run by an evaluation.
        open_runner: called in each worker's thread.
        enough: whether the global step has reached the end.
        tick: called ten times a second in the calling thread.

    Raises:
        BaseException: the first error of any thread, as itself, when all threads have ended.
        RuntimeError: a thread has not returned in 10 s; the text names it.
        KeyboardInterrupt: as it came, when all threads have ended.
    """
    coordinator = tf.train.Coordinator(clean_stop_exception_types=())
    # More workers than cores at a time would only take the interpreter lock from each other.
    turn = threading.BoundedSemaphore(os.cpu_count() or 1)

    def guarded(function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except BaseException:  # an environment may well raise SystemExit
            coordinator.request_stop(sys.exc_info())

    def work(worker: Worker) -> None:
        runner = open_runner(worker.index, coordinator.should_stop)
        try:
            worker.run(runner, lambda: coordinator.should_stop() or enough(), turn)
        finally:
            runner.close()

    def watch() -> None:
        monitor.run(coordinator.wait_for_stop)
        coordinator.request_stop()

    threads = [
        threading.Thread(target=guarded, args=(work, w), name=f"worker-{w.index}", daemon=True)
        for w in workers
    ]
    watcher = threading.Thread(target=guarded, args=(watch,), name="monitor", daemon=True)
    interrupt = None
    try:
        for thread in (*threads, watcher):
            thread.start()
        while any(thread.is_alive() for thread in threads):
            tick()
            if coordinator.wait_for_stop(TICK_SECONDS):
                break
    except BaseException as error:  # Ctrl-C, or an error of `tick`
        interrupt = error
    coordinator.request_stop()
    coordinator.join([*threads, watcher], stop_grace_period_secs=GRACE_SECONDS)
    if interrupt is not None:
        raise interrupt
