"""Measures what a part of a run costs: the trainer with the part and without it, in turn.

    python scripts/benchmark_cost.py --part checks --seconds 3 --repeats 10
    python scripts/benchmark_cost.py --part writing --workers 2 --seconds 30 --repeats 4

Checks are the looks for NaN and infinity. Writing is everything that goes to TensorBoard: curves,
distributions, and an episode after a minute of a run.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import tyro
from rich.console import Console
from rich.table import Table

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # as scripts/train.py does for dense nets

from a3c_tf import training
from a3c_tf.benchmark import Speed, measure_speed
from a3c_tf.build import build_agent
from a3c_tf.config import Backend, TrainConfig
from a3c_tf.envs import runner
from a3c_tf.envs.factory import RegisteredEnv, spaces_of
from a3c_tf.envs.runner import EnvRunner
from a3c_tf.telemetry import EventLog
from a3c_tf.worker import Worker

# What does not happen without the part. Checks are made in worker processes as well, where nothing
# can be switched off from here.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "checks": [
        (runner, "check_observations"),
        (EnvRunner, "_check_rewards"),
        (Worker, "_check"),
    ],
    "writing": [
        (training, "make_pictures"),
        *((EventLog, name) for name in ("scalars", "histograms", "image", "text", "summaries")),
    ],
}


@dataclass(frozen=True)
class Options:
    """Measures what a part of a run costs."""

    part: Literal["checks", "writing"] = "checks"
    """The part."""
    env: str = "CartPole-v1"
    """Environment id."""
    backend: Backend = "threads"
    """Workers as threads or, for the writing, as processes."""
    workers: int = 1
    """Workers; the speed of one differs least from one repetition to the next."""
    eval_interval: int = 50_000
    """Environment steps between two evaluations, for the writing."""
    seconds: float = 3.0
    """Wall time of one measurement, in seconds."""
    repeats: int = 10
    """Measurements with the part, and without it."""


@contextmanager
def switched_off(part: str) -> Iterator[None]:
    """Within the block, nothing of it is done."""

    def nothing(*arguments: Any) -> None:  # a Mock would cost more than a check
        return

    with ExitStack() as patches:
        for owner, name in PARTS[part]:
            patches.enter_context(mock.patch.object(owner, name, nothing))
        yield


def main() -> None:
    """Measures and prints a table."""
    options = tyro.cli(Options)
    if options.part == "checks" and options.backend == "processes":
        raise SystemExit("--backend is processes; checks are measured with --backend threads")
    make_env = RegisteredEnv(options.env)
    spaces = spaces_of(make_env)

    def measure() -> Speed:
        agent = build_agent(TrainConfig(env=options.env), *spaces)
        interval = options.eval_interval if options.part == "writing" else None
        sizes = options.workers, 8, 5, options.seconds
        return measure_speed(agent, make_env, *sizes, options.backend, interval)

    measured: list[Speed] = []
    without: list[Speed] = []
    for number in range(2 * options.repeats):
        if number % 4 in (0, 3):  # with, without, without, with: a machine that drifts hits both
            measured.append(measure())
        else:
            with switched_off(options.part):
                without.append(measure())
    table = Table("", "steps/s", "CPU us a step", "CPU us, each")
    for name, speeds in ((f"with {options.part}", measured), ("without", without)):
        cells = ("steps_per_second", "cpu_us_per_step")
        medians = [statistics.median(getattr(speed, cell) for speed in speeds) for cell in cells]
        each = " ".join(f"{speed.cpu_us_per_step:.1f}" for speed in speeds)
        table.add_row(name, f"{medians[0]:,.0f}", f"{medians[1]:.2f}", each)
    Console().print(table)


if __name__ == "__main__":
    main()
