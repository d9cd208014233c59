"""Measures the trainer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from a3c_tf.commands.kernels import choose_kernels
from a3c_tf.commands.output import OK, usage
from a3c_tf.config import TrainConfig, resolve_backend
from a3c_tf.envs.factory import RegisteredEnv, spaces_of
from a3c_tf.errors import ConfigError
from a3c_tf.flags import parse_flags

OWN = ("seconds", "json")  # the other flags are settings of a run


@dataclass(frozen=True)
class BenchmarkConfig:
    """Measures the trainer: environment steps a second and CPU time a step."""

    env: str = "CartPole-v1"
    """Environment id."""
    backend: Literal["auto", "threads", "processes"] = "auto"
    """Workers as threads or as processes; auto: processes if there is more than one worker."""
    workers: int = 2
    """Workers."""
    envs_per_worker: int = 8
    """Environments that each worker steps together (K)."""
    t_max: int = 5
    """Steps of a rollout (T)."""
    network: Literal["mlp", "paper_cnn", "nature_cnn", "impala"] = "mlp"
    """Two dense layers of 64, or a net for images."""
    lstm: bool = False
    """A LSTM behind each trunk."""
    shared_trunk: bool = False
    """One trunk of hidden layers for policy and value, instead of one for each."""
    normalize_observations: bool = False
    """Observations in units of their own spread."""
    seconds: float = 10.0
    """Wall time that is measured, in seconds."""
    json: bool = False
    """One JSON object on standard output and nothing else."""


def benchmark(arguments: Sequence[str]) -> int:
    """`a3c-tf benchmark`, `scripts/benchmark.py`."""
    config = parse_flags(BenchmarkConfig, arguments, "benchmark")
    choose_kernels(config.network)
    try:
        of_run = {name: value for name, value in asdict(config).items() if name not in OWN}
        settings = TrainConfig().updated(of_run, "flags")
        settings.validate()
        if config.seconds <= 0:
            raise ConfigError(f"--seconds is {config.seconds}; it must be more than 0")
        make_env = RegisteredEnv(config.env)
        spaces = spaces_of(make_env)
        from a3c_tf.benchmark import measure_speed
        from a3c_tf.build import build_agent

        agent = build_agent(settings, *spaces)
    except ValueError as error:
        return usage(error)
    speed = measure_speed(
        agent,
        make_env,
        config.workers,
        config.envs_per_worker,
        config.t_max,
        config.seconds,
        resolve_backend(settings),
    )
    if config.json:
        print(json.dumps(asdict(speed)))
        return OK
    table = Table("", "measured", title=f"{config.env}, {config.network}")
    table.add_row("workers, K, T", f"{config.workers}, {config.envs_per_worker}, {config.t_max}")
    table.add_row("steps/s", f"{speed.steps_per_second:,.0f}")
    table.add_row("CPU us a step", f"{speed.cpu_us_per_step:.1f}")
    table.add_row("steps/s of the environments alone", f"{speed.env_only_steps_per_second:,.0f}")
    table.add_row("seconds until all workers step", f"{speed.start_seconds:.1f}")
    shares = (f"{part} {share:.1%}" for part, share in speed.time.items())
    table.add_row("workers' time", ", ".join(shares))
    Console().print(table)
    return OK
