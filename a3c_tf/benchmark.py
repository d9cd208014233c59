"""How fast the real trainer is, and what it costs."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from a3c_tf.agents.base import Agent
from a3c_tf.config import Backend
from a3c_tf.envs.factory import MakeEnv, make_vector_env
from a3c_tf.progress import Progress
from a3c_tf.training import train_agent_async

WARM_UP_SECONDS = 1.0


@dataclass(frozen=True)
class Speed:
    """What a benchmark measured.

    Attributes:
        steps_per_second: environment steps of all workers together, in a second of wall time.
        cpu_us_per_step: CPU time of the whole program for one step, in microseconds.
        env_only_steps_per_second: the same environments with random actions and no learner, in
            threads whatever the workers run in.
        start_seconds: from the call until every worker had stepped.
        time: where the workers' time went, in shares.
    """

    steps_per_second: float
    cpu_us_per_step: float
    env_only_steps_per_second: float
    start_seconds: float
    time: dict[str, float]


class _Enough(KeyboardInterrupt):
    """Ends the run as Ctrl-C would."""


def measure_speed(
    agent: Agent,
    make_env: MakeEnv,
    workers: int,
    envs_per_worker: int,
    t_max: int,
    seconds: float,
    backend: Backend = "threads",
    eval_interval: int | None = None,
) -> Speed:
    """Trains for some seconds with everything that belongs to a run.

    Building, tracing and the first second do not count.

    Args:
        agent: is trained.
        make_env: makes the environments.
        workers: how many.
        envs_per_worker: K.
        t_max: T.
        seconds: of wall time measured, for the trainer and for the environments alone.
        backend: how the workers run.
        eval_interval: environment steps between two evaluations; None for none.
    """
    marks: list[tuple[float, float, int]] = []
    called = time.perf_counter()

    def on_tick(step: int, progress: Progress) -> None:
        now = time.perf_counter()
        started = bool(marks) and now >= marks[0][0] + WARM_UP_SECONDS
        all_step = progress.workers_started == workers
        if (all_step and not marks) or (started and len(marks) == 1):
            marks.append((now, _cpu_seconds(), step))
        elif len(marks) == 2 and now >= marks[1][0] + seconds:
            marks.append((now, _cpu_seconds(), step))
            raise _Enough

    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory, "run")
        with contextlib.suppress(_Enough):
            train_agent_async(
                run,
                workers,
                make_env,
                agent=agent,
                steps=10**12,
                eval_interval=eval_interval,
                envs_per_worker=envs_per_worker,
                t_max=t_max,
                backend=backend,
                on_tick=on_tick,
            )
        shares = json.loads((run / "summary.json").read_text())["time"]
    (start, cpu_start, first), (end, cpu_end, last) = marks[1:]
    steps = last - first
    return Speed(
        steps / (end - start),
        (cpu_end - cpu_start) / steps * 1e6,
        _env_only_speed(make_env, workers, envs_per_worker, seconds),
        marks[0][0] - called,
        shares,
    )


def _cpu_seconds() -> float:
    """CPU time of this process and its children."""
    program = psutil.Process()
    times = [process.cpu_times() for process in (program, *program.children(recursive=True))]
    return sum(spent.user + spent.system for spent in times)


def _env_only_speed(make_env: MakeEnv, workers: int, envs_per_worker: int, seconds: float) -> float:
    """Steps a second with one thread a worker, random actions and no learner."""
    steps = np.zeros(workers, np.int64)
    end = time.perf_counter() + seconds

    def step(index: int) -> None:
        envs = make_vector_env(make_env, index, envs_per_worker, test=False)
        envs.reset(seed=index)
        actions = [envs.action_space.sample() for _ in range(100)]
        resetting = np.zeros(envs.num_envs, np.bool_)
        while time.perf_counter() < end:
            for action in actions:
                _, _, terminated, truncated, _ = envs.step(action)
                steps[index] += np.count_nonzero(~resetting)
                resetting = terminated | truncated
        envs.close()

    threads = [threading.Thread(target=step, args=(index,)) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(steps.sum() / seconds)
