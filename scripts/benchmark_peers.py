"""Measures how fast two peers of a3c_tf train: environment steps and CPU time.

- `sb3`: Stable-Baselines3 A2C, 16 environments in one process (`DummyVecEnv`), its default
  `n_steps=5` and `MlpPolicy`.
- `pfrl`: PFRL A3C, 2 processes with one environment each, `t_max=5`.

Both train the same nets on the CPU: separate policy and value MLPs, each with two hidden layers
of 64 tanh units. PyTorch gets one thread a process, so one process is at most one busy core.

Every repeat runs in a fresh process. The clock starts when all its workers have stepped for a
while, and ends before they stop: imports, process starts and building are not measured.

    pip install -e '.[bench]'
    python scripts/benchmark_peers.py --peer all --seconds 10 --repeats 3
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import multiprocessing
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

SB3_ENVIRONMENTS = 16
PFRL_PROCESSES = 2
T_MAX = 5

WARM_UP_SECONDS = 2.0
START_UP_LIMIT_SECONDS = 120.0
ENDLESS = 10**12  # steps; the meter ends the training, not the step count

METRICS = {"steps_per_second": "steps/s", "cpu_us_per_step": "CPU us/step"}


@dataclass
class Options:
    """The command line.

    Attributes:
        peer: Which library to measure.
        env: Gymnasium id of an environment with vector observations and, for PFRL, discrete
            actions.
        seconds: Wall-clock seconds of one measurement. More seconds even out a noisy machine.
        repeats: Measurements of each peer; the table shows their median, minimum and maximum.
        json: Print one JSON object instead of the table.
    """

    peer: Literal["sb3", "pfrl", "all"] = "all"
    env: str = "CartPole-v1"
    seconds: float = 10.0
    repeats: int = 3
    json: bool = False

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ValueError(f"--seconds is {self.seconds}: give a number above 0")
        if self.repeats < 1:
            raise ValueError(f"--repeats is {self.repeats}: give 1 or more")


class Meter:
    """Counts steps and CPU seconds of several processes, where another process can read them.

    Every training process writes only its own slot, so no lock slows it down. It reports its CPU
    time itself because `getrusage(RUSAGE_CHILDREN)` knows only children that have ended.
    """

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.steps = context.RawArray("q", processes)
        self.cpu_seconds = context.RawArray("d", processes)
        self.stop = context.Event()

    def tick(self, process: int, steps: int = 1) -> None:
        """Adds steps to the slot of the calling process, and notes its CPU time so far."""
        self.steps[process] += steps
        self.cpu_seconds[process] = time.process_time()

    def read(self) -> tuple[float, int, float]:
        """Returns wall-clock seconds, steps of all processes, and their CPU seconds."""
        return time.perf_counter(), sum(self.steps), sum(self.cpu_seconds)


def hush_gym() -> None:
    """Imports the retired Gym, as both peers do, without its notice of five lines each time."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(ImportError):
        importlib.import_module("gym")


def train_sb3(env_id: str, meter: Meter) -> None:
    """Trains Stable-Baselines3 A2C with its defaults until the meter says stop."""
    hush_gym()
    import torch
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_util import make_vec_env

    def on_step(*_: Any) -> bool:
        meter.tick(0, SB3_ENVIRONMENTS)
        return not meter.stop.is_set()

    torch.set_num_threads(1)
    envs = make_vec_env(env_id, SB3_ENVIRONMENTS, seed=0)  # a DummyVecEnv
    A2C("MlpPolicy", envs, n_steps=T_MAX, device="cpu", seed=0).learn(ENDLESS, callback=on_step)


class OldStyleEnv:
    """A Gymnasium environment with the interface PFRL expects, counting its steps.

    `reset` returns the observation only, `step` four values; a truncated episode is announced by
    `info["needs_reset"]`, so that PFRL bootstraps from its last observation.
    """

    def __init__(self, env_id: str, seed: int, on_step: Callable[[], None]) -> None:
        import gymnasium

        self._env = gymnasium.make(env_id)
        self._seed: int | None = seed
        self._on_step = on_step

    def reset(self) -> Any:
        """Starts an episode and returns its first observation."""
        observation, _ = self._env.reset(seed=self._seed)
        self._seed = None  # seed once: the same seed each time would repeat one episode
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Returns observation, reward, terminated and info."""
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._on_step()
        return observation, float(reward), terminated, {**info, "needs_reset": truncated}

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


def train_pfrl(env_id: str, meter: Meter) -> None:
    """Trains PFRL A3C until the meter says stop.

    Optimizer and loss weights are those of PFRL's A3C example; learning rate and gradient
    clipping those of Stable-Baselines3.

    Raises:
        ValueError: The environment's actions are not discrete.
    """
    hush_gym()
    import gymnasium
    import numpy as np
    import torch
    from pfrl.agents import A3C
    from pfrl.experiments import train_agent_async
    from pfrl.nn import Branched
    from pfrl.optimizers import SharedRMSpropEpsInsideSqrt
    from pfrl.policies import SoftmaxCategoricalHead
    from pfrl.utils.async_ import AbnormalExitWarning

    probe = gymnasium.make(env_id)
    if not isinstance(probe.action_space, gymnasium.spaces.Discrete):
        raise ValueError(f"{env_id} has actions {probe.action_space}: --peer pfrl needs Discrete")
    inputs = int(np.prod(probe.observation_space.shape or ()))
    actions = int(probe.action_space.n)
    probe.close()

    def mlp(outputs: int) -> list[torch.nn.Module]:
        return [
            torch.nn.Linear(inputs, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, outputs),
        ]

    def make_agent(process: int) -> Any:
        model = Branched(
            torch.nn.Sequential(*mlp(actions), SoftmaxCategoricalHead()),
            torch.nn.Sequential(*mlp(1)),
        )
        return A3C(
            model,
            SharedRMSpropEpsInsideSqrt(model.parameters(), lr=7e-4, eps=1e-1, alpha=0.99),
            t_max=T_MAX,
            gamma=0.99,
            beta=1e-2,
            phi=lambda observation: np.asarray(observation, dtype=np.float32),
            max_grad_norm=0.5,
        )

    def make_env(process: int, test: bool) -> OldStyleEnv:
        return OldStyleEnv(env_id, process, lambda: meter.tick(process))

    torch.set_num_threads(1)
    # PFRL hands closures to its processes, which only a fork can inherit.
    multiprocessing.set_start_method("fork", force=True)
    # It only warns of a dead worker; the rate of the other one would look like a result.
    warnings.simplefilter("error", AbnormalExitWarning)
    warnings.filterwarnings("ignore", "This overload of addcmul_ is deprecated")
    with tempfile.TemporaryDirectory() as outdir:
        train_agent_async(
            outdir,
            PFRL_PROCESSES,
            make_env,
            steps=ENDLESS,
            eval_interval=None,
            make_agent=make_agent,
            stop_event=meter.stop,
            random_seeds=list(range(PFRL_PROCESSES)),  # PyTorch refuses PFRL's own NumPy integers
        )


@dataclass(frozen=True)
class Peer:
    """A library to measure: `train(env_id, meter)` trains until `meter.stop` is set."""

    key: str
    title: str
    packages: tuple[str, ...]
    processes: int
    train: Callable[[str, Meter], None]


PEERS = {
    "sb3": Peer(
        key="sb3_a2c",
        title=f"SB3 A2C, 1 x {SB3_ENVIRONMENTS}",
        packages=("stable_baselines3", "torch"),
        processes=1,
        train=train_sb3,
    ),
    "pfrl": Peer(
        key="pfrl_a3c",
        title=f"PFRL A3C, {PFRL_PROCESSES} x 1",
        # PFRL imports `packaging` without declaring it.
        packages=("pfrl", "torch", "packaging"),
        processes=PFRL_PROCESSES,
        train=train_pfrl,
    ),
}


def measure(peer: Peer, env_id: str, seconds: float) -> dict[str, float]:
    """Trains a peer in a fresh process and reads its meter at two moments from outside.

    Returns:
        A value for each of `METRICS`. CPU time is user and system time of all training processes.

    Raises:
        RuntimeError: The peer did not start, or ended with an error.
    """
    meter = Meter(peer.processes)
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=peer.train, args=(env_id, meter))
    child.start()

    def wait(seconds: float) -> None:
        child.join(seconds)  # a sleep that ends early if the child dies
        if not child.is_alive():
            raise RuntimeError(f"{peer.title}: ended before it was measured, see the error above")

    try:
        deadline = time.perf_counter() + START_UP_LIMIT_SECONDS
        while not all(meter.steps):
            wait(0.05)
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{peer.title}: not started in {START_UP_LIMIT_SECONDS:.0f} s")
        wait(WARM_UP_SECONDS)
        wall_start, steps_start, cpu_start = meter.read()
        wait(seconds)
        wall_end, steps_end, cpu_end = meter.read()
    finally:
        meter.stop.set()
        child.join()
    if child.exitcode != 0:
        raise RuntimeError(f"{peer.title}: a process failed, see the error above")

    steps = steps_end - steps_start
    if steps == 0:
        raise RuntimeError(f"{peer.title}: no step in {seconds} s, give more --seconds")
    return {
        "steps_per_second": steps / (wall_end - wall_start),
        "cpu_us_per_step": 1e6 * (cpu_end - cpu_start) / steps,
    }


def summary(repeats: list[dict[str, float]]) -> dict[str, Any]:
    """Returns the medians and the repeats, as the JSON output shows them."""
    medians = {metric: statistics.median(r[metric] for r in repeats) for metric in METRICS}
    return {**medians, "repeats": repeats}


def table(results: dict[str, list[dict[str, float]]], options: Options) -> Table:
    """Returns median, minimum and maximum of every peer as a table."""
    view = Table(title=f"{options.env}, {options.repeats} x {options.seconds:g} s")
    view.add_column("processes x envs")
    for label in METRICS.values():
        view.add_column(label, justify="right")
        view.add_column("min - max", justify="right")
    for name, repeats in results.items():
        cells = []
        for metric in METRICS:
            values = [r[metric] for r in repeats]
            cells.append(f"{statistics.median(values):,.0f}")
            cells.append(f"{min(values):,.0f} - {max(values):,.0f}")
        view.add_row(PEERS[name].title, *cells)
    return view


def main() -> int:
    """Measures, prints, and returns the exit code: 1 a peer failed, 2 wrong use."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    options = tyro.cli(Options, description=__doc__)
    names = list(PEERS) if options.peer == "all" else [options.peer]
    packages = {package: None for name in names for package in PEERS[name].packages}
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        errors.print(f"not installed: {', '.join(missing)}; run: pip install -e '.[bench]'")
        return 2

    # A plain SIGTERM (`timeout`, a job queue) would leave the endless training running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    # Peers take turns, so that a busy spell of the machine does not hit one of them alone.
    turns = names * options.repeats
    try:
        for name in track(turns, "measuring", console=errors, transient=True):
            results[name].append(measure(PEERS[name], options.env, options.seconds))
    except RuntimeError as error:
        errors.print(error)
        return 1

    if options.json:
        print(json.dumps({PEERS[name].key: summary(r) for name, r in results.items()}))
    else:
        Console().print(table(results, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
