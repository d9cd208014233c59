"""Trains an agent: a new run, or one that goes on."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from a3c_tf.commands.kernels import choose_kernels
from a3c_tf.commands.output import (
    EVAL_ENVS,
    FAILED,
    INTERRUPTED,
    OK,
    TERMINATED,
    even_if_nobody_reads,
    show,
    usage,
)
from a3c_tf.config import TrainConfig, resolve_backend
from a3c_tf.display import Display, make_display
from a3c_tf.envs.factory import RegisteredEnv, spaces_of
from a3c_tf.errors import CheckpointError, ConfigError
from a3c_tf.run_directory import check_writable, new_run_directory, write_config
from a3c_tf.settings import describe_settings, parse_settings
from a3c_tf.signals import Terminated

if TYPE_CHECKING:
    from a3c_tf.agents.a3c import A3CAgent
    from a3c_tf.progress import Progress

# TensorFlow takes seconds to import, so what needs it is imported where bad flags have passed.


def train(arguments: Sequence[str]) -> int:
    """`a3c-tf train`, `scripts/train.py`."""
    console = Console()
    try:
        config, origins = parse_settings(arguments)
        choose_kernels(config.network)
        make_env = RegisteredEnv(config.env, config.sticky_actions, config.env_args)
        spaces = spaces_of(make_env)
        from a3c_tf.build import build_agent
        from a3c_tf.quiet import tf

        tf.config.run_functions_eagerly(config.eager)
        agent = build_agent(config, *spaces)
        directory = config.resume or new_run_directory(config)
        if config.resume is None:
            write_config(directory, config)
        else:
            check_writable(directory)
    except ValueError as error:
        return usage(error)
    for line in (*describe_settings(config, origins), f"run directory: {directory}"):
        show(console, line)
    return _run(console, config, directory, make_env, agent)


def _run(
    console: Console,
    config: TrainConfig,
    directory: Path,
    make_env: RegisteredEnv,
    agent: A3CAgent,
) -> int:
    from a3c_tf.training import train_agent_async

    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)

    display: Display | None = None

    def on_tick(step: int, progress: Progress) -> None:
        nonlocal display
        if display is None:  # all checks have passed: the run has begun
            write_config(directory, config)
        with even_if_nobody_reads():
            display = display or make_display(console, config.steps)
            display.update(step, progress.last_score)

    try:
        train_agent_async(
            directory,
            config.workers,
            make_env,
            agent=agent,
            steps=config.steps,
            eval_interval=config.eval_interval,
            eval_n_episodes=config.eval_episodes,
            successful_score=config.successful_score,
            envs_per_worker=config.envs_per_worker,
            t_max=config.t_max,
            seed=config.seed,
            eval_envs=EVAL_ENVS,
            eval_seconds=config.eval_seconds,
            video_every=config.video_every,
            settings=config.to_dict(),
            checkpoint_seconds=config.checkpoint_seconds,
            stall_timeout=config.stall_timeout,
            deterministic=config.deterministic,
            resume=config.resume is not None,
            backend=resolve_backend(config),
            on_tick=on_tick,
        )
    except (ConfigError, CheckpointError) as error:
        return usage(error)
    except KeyboardInterrupt as error:
        _close(display)
        begun = any((directory / "checkpoints").glob("[0-9]*"))
        show(console, "interrupted" + f"; go on with: --resume {directory}" * begun)
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except SystemExit as error:  # an environment's: an error, whatever its number
        traceback.print_exception(error)
        return FAILED
    finally:
        _close(display)
    _print_result(console, directory)
    return OK


def _close(display: Display | None) -> None:
    with even_if_nobody_reads():
        if display is not None:
            display.close()


def _print_result(console: Console, directory: Path) -> None:
    summary = json.loads((directory / "summary.json").read_text())
    for line in (
        f"ended by {summary['stopped_by']} after {summary['steps']:,} steps, "
        f"{summary['episodes']:,} episodes, {summary['seconds']:.1f} s "
        f"({summary['steps_per_second']:,.0f} steps/s)",
        f"score {summary['final_score']}, best {summary['best_score']}",
        f"curves: tensorboard --logdir {directory}",
    ):
        show(console, line)
