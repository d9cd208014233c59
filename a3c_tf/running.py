"""Runs what has been built, until its end, whatever that is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from a3c_tf.backends.supervisor import supervise
from a3c_tf.monitor import PolicyMonitor
from a3c_tf.parameters import ParameterServer
from a3c_tf.progress import Progress
from a3c_tf.reports import RunningWorker
from a3c_tf.signals import StopRequest
from a3c_tf.watchdog import Watchdog

# on_tick(global step, progress), called about ten times a second
OnTick = Callable[[int, Progress], None]


def run_to_the_end(
    server: ParameterServer,
    workers: Sequence[RunningWorker],
    monitor: PolicyMonitor,
    watchdog: Watchdog,
    request: StopRequest,
    env_name: str,
    on_tick: OnTick | None,
    logger: logging.Logger,
) -> None:
    """Runs workers and monitor; whatever ends them, the agent and a checkpoint are saved."""

    def tick() -> None:
        request.raise_if_made()
        watchdog.look()
        if on_tick:
            on_tick(server.global_step, monitor.progress)

    def on_error(who: str, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            return
        step = server.global_step
        logger.error("the run ends at step %d: %s (%s): %r", step, who, env_name, error)
        if hasattr(error, "add_note"):  # from Python 3.11 on; it is shown below the traceback
            error.add_note(f"in {who} ({env_name}), at global step {step}")

    def on_stuck(who: str) -> None:
        logger.error("%s (%s) does not return and is left alone", who, env_name)

    try:
        supervise([worker.run for worker in workers], monitor.run, tick, on_error, on_stuck)
    except BaseException as error:
        try:
            monitor.finish("interrupt" if isinstance(error, KeyboardInterrupt) else "error")
        except Exception as failure:  # must not hide what ended the run
            if repr(failure) != repr(error):
                logger.error("at the end of the run: %r", failure)
        raise

    def should_stop() -> bool:
        watchdog.look()
        return bool(request)

    try:
        monitor.finish("steps", should_stop)
    except BaseException as error:
        request.raise_if_made()
        on_error("the end", error)
        raise
    request.raise_if_made()
    if on_tick:
        on_tick(server.global_step, monitor.progress)
