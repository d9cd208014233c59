"""Measures what the checks for NaN and infinity cost: the trainer with and without them, in turn.

One worker (a thread), whose speed differs least from one repetition to the next.

    python scripts/benchmark_checks.py --seconds 3 --repeats 10
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tyro
from rich.console import Console
from rich.table import Table

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # as scripts/train.py does for dense nets

from a3c_tf.benchmark import Speed, measure_speed
from a3c_tf.build import build_agent
from a3c_tf.config import TrainConfig
from a3c_tf.envs import runner
from a3c_tf.envs.factory import RegisteredEnv, spaces_of
from a3c_tf.envs.runner import EnvRunner
from a3c_tf.worker import Worker


@dataclass(frozen=True)
class Options:
    """Measures what the checks for NaN and infinity cost."""

    env: str = "CartPole-v1"
    """Environment id."""
    seconds: float = 3.0
    """Wall time of one measurement, in seconds."""
    repeats: int = 10
    """Measurements with the checks, and without them."""


@contextmanager
def switched_off() -> Iterator[None]:
    """Within the block, nothing is looked at."""

    def nothing(*arguments: Any) -> None:  # a Mock would cost more than the check
        return

    with (
        mock.patch.object(runner, "check_observations", nothing),
        mock.patch.object(EnvRunner, "_check_rewards", nothing),
        mock.patch.object(Worker, "_check", nothing),
    ):
        yield


def main() -> None:
    """Measures and prints a table."""
    options = tyro.cli(Options)
    make_env = RegisteredEnv(options.env)
    spaces = spaces_of(make_env)

    def measure() -> Speed:
        agent = build_agent(TrainConfig(env=options.env), *spaces)
        return measure_speed(agent, make_env, 1, 8, 5, options.seconds)

    ours, theirs = [], []
    for number in range(2 * options.repeats):
        if number % 4 in (0, 3):  # with, without, without, with: a machine that drifts hits both
            ours.append(measure())
        else:
            with switched_off():
                theirs.append(measure())
    table = Table("", "steps/s", "CPU us a step")
    for name, speeds in (("with checks", ours), ("without", theirs)):
        cells = ("steps_per_second", "cpu_us_per_step")
        medians = [statistics.median(getattr(speed, cell) for speed in speeds) for cell in cells]
        table.add_row(name, f"{medians[0]:,.0f}", f"{medians[1]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
