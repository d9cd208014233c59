"""The command line: train, evaluate, benchmark. Each returns the program's exit code."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from a3c_tf.config import NamedValues, TrainConfig, resolve_backend
from a3c_tf.display import Display, make_display
from a3c_tf.envs.factory import RegisteredEnv, spaces_of
from a3c_tf.errors import CheckpointError, ConfigError, at_the_end
from a3c_tf.run_directory import check_writable, new_run_directory, write_config
from a3c_tf.settings import describe_settings, parse_settings
from a3c_tf.signals import RaiseOnce, Terminated

if TYPE_CHECKING:
    from a3c_tf.agents.a3c import A3CAgent
    from a3c_tf.monitor import Progress

# TensorFlow takes seconds to import, so what needs it is imported where bad flags have passed.

EVAL_ENVS = 20  # more at once gain little: the last episode is waited for anyway

OK, FAILED, USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


def train(arguments: Sequence[str]) -> int:
    """`scripts/train.py`."""
    console = Console()
    try:
        config, origins = parse_settings(arguments)
        _choose_kernels(config.network)
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
        return _usage(error)
    for line in (*describe_settings(config, origins), f"run directory: {directory}"):
        _show(console, line)
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
        with _even_if_nobody_reads():
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
            checkpoint_seconds=config.checkpoint_seconds,
            stall_timeout=config.stall_timeout,
            deterministic=config.deterministic,
            resume=config.resume is not None,
            backend=resolve_backend(config),
            on_tick=on_tick,
        )
    except (ConfigError, CheckpointError) as error:
        return _usage(error)
    except KeyboardInterrupt as error:
        _close(display)
        begun = any((directory / "checkpoints").glob("[0-9]*"))
        _show(console, "interrupted" + f"; go on with: --resume {directory}" * begun)
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except SystemExit as error:  # an environment's: an error, whatever its number
        traceback.print_exception(error)
        return FAILED
    finally:
        _close(display)
    _print_result(console, directory)
    return OK


def _close(display: Display | None) -> None:
    with _even_if_nobody_reads():
        if display is not None:
            display.close()


def _show(console: Console, line: str) -> None:
    with _even_if_nobody_reads():
        console.print(line, highlight=False, soft_wrap=True)


@contextmanager
def _even_if_nobody_reads() -> Iterator[None]:
    """What is shown in the block, and after it, goes nowhere if it cannot be written.

    As with `| head`, or with a terminal that was closed. The training goes on.
    """
    try:
        yield
    except (OSError, SystemExit):  # Rich makes a SystemExit of a broken pipe
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_result(console: Console, directory: Path) -> None:
    summary = json.loads((directory / "summary.json").read_text())
    for line in (
        f"ended by {summary['stopped_by']} after {summary['steps']:,} steps, "
        f"{summary['episodes']:,} episodes, {summary['seconds']:.1f} s "
        f"({summary['steps_per_second']:,.0f} steps/s)",
        f"score {summary['final_score']}, best {summary['best_score']}",
        f"curves: tensorboard --logdir {directory}",
    ):
        _show(console, line)


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluates a saved agent on whole episodes and prints its scores."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of a run (its best agent, else its last one is taken) or of an agent."""
    env: str | None = None
    """Environment id; by default that of the run."""
    env_args: NamedValues = field(default_factory=dict)
    """Arguments of the environment that is named; by default, those of the run."""
    episodes: int = 100
    """Whole episodes."""
    seed: int = 12345
    """Of environments and actions; not the run's, so that the episodes are new."""
    greedy: bool = False
    """The most likely action instead of a drawn one."""
    json: bool = False
    """One JSON object on standard output and nothing else."""


def evaluate(arguments: Sequence[str]) -> int:
    """`scripts/evaluate.py`."""
    config = tyro.cli(EvaluateConfig, args=list(arguments), prog="evaluate.py")
    try:
        agent_directory = _find_agent(config.run)
        make_env = _env_of(agent_directory, config.env, config.env_args)
        spaces = spaces_of(make_env)
        if config.episodes < 1:
            raise ConfigError(f"--episodes is {config.episodes}; it must be at least 1")
        from a3c_tf.agents.loading import load_agent
        from a3c_tf.evaluation import Evaluator
        from a3c_tf.graphs import configure_tensorflow

        configure_tensorflow()
        agent = load_agent(agent_directory)
        if spaces != (agent.observation_space, agent.action_space):
            raise ConfigError(
                f"{make_env.env_id} has the spaces {spaces[0]} and {spaces[1]}, the agent was "
                f"trained on {agent.observation_space} and {agent.action_space}"
            )
    except (ValueError, FileNotFoundError) as error:
        return _usage(error)
    evaluator = Evaluator(agent, make_env, config.episodes, config.seed, config.greedy, EVAL_ENVS)
    with at_the_end(evaluator.close):
        scores = evaluator.run()
    assert scores is not None
    summary = scores.summary()
    result = {name: summary[name] for name in ("mean", "stdev", "min", "max")}
    result["count"] = config.episodes
    if config.json:
        print(json.dumps(result))
    else:
        print(f"{agent_directory}: " + "  ".join(f"{k} {v:.6g}" for k, v in result.items()))
    return OK


def _find_agent(path: Path) -> Path:
    """The directory itself if it holds an agent, else the run's best, else its last agent."""
    candidates = [path, path / "best"]
    candidates += sorted(
        (p for p in (*path.glob("*_finish"), *path.glob("*_except"))),
        key=lambda p: int(p.name.split("_")[0]),
        reverse=True,
    )
    for candidate in candidates:
        if (candidate / "agent.json").is_file():
            return candidate
    raise ConfigError(f"{path} holds no agent and no run with one")


def _env_of(agent_directory: Path, env_id: str | None, env_args: dict[str, Any]) -> RegisteredEnv:
    """The environment that is named, else the run's, as it was there."""
    if env_id is not None:
        return RegisteredEnv(env_id, arguments=env_args)
    if env_args:
        raise ConfigError(f"--env-args is {env_args}; name the --env as well")
    from a3c_tf.run_directory import read_config

    for directory in (agent_directory, *agent_directory.resolve().parents[:2]):
        if (directory / "config.yaml").is_file():
            settings = read_config(directory)
            return RegisteredEnv(
                str(settings["env"]), bool(settings.get("sticky_actions")), settings.get("env_args")
            )
    raise ConfigError(f"{agent_directory} is not in a run directory; name the --env")


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
    """`scripts/benchmark.py`."""
    config = tyro.cli(BenchmarkConfig, args=list(arguments), prog="benchmark.py")
    _choose_kernels(config.network)
    try:
        settings = replace(
            TrainConfig(),
            env=config.env,
            workers=config.workers,
            envs_per_worker=config.envs_per_worker,
            t_max=config.t_max,
            network=config.network,
            lstm=config.lstm,
            shared_trunk=config.shared_trunk,
            normalize_observations=config.normalize_observations,
            backend=config.backend,
        )
        settings.validate()
        if config.seconds <= 0:
            raise ConfigError(f"--seconds is {config.seconds}; it must be more than 0")
        make_env = RegisteredEnv(config.env)
        spaces = spaces_of(make_env)
        from a3c_tf.benchmark import measure_speed
        from a3c_tf.build import build_agent

        agent = build_agent(settings, *spaces)
    except ValueError as error:
        return _usage(error)
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


def _choose_kernels(network: str) -> None:
    """Switches TensorFlow's oneDNN kernels off where they are slower, before it is imported.

    They double the speed of convolutions, but cost small dense layers a tenth of theirs. Child
    processes inherit the choice.
    """
    if network == "mlp":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def _usage(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return USAGE


def main(command: Callable[[Sequence[str]], int]) -> None:
    """Runs a command on the program's arguments and exits with its code."""
    handler = RaiseOnce()
    handler.install()
    try:
        code = command(sys.argv[1:])
    except KeyboardInterrupt as error:
        _show(Console(), "interrupted")
        code = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    handler.ignore()
    sys.exit(code)
