"""Measures how fast two peers of a3c_tf train: environment steps and CPU time.

- `sb3`: Stable-Baselines3 A2C, 16 environments: in one process, or for Atari games in 16.
- `pfrl`: PFRL A3C, 2 processes with one environment each.

Both train the same nets on the CPU, those of `peers.py`.

Every repeat runs in a fresh process. The clock starts when all its workers have stepped for a
while, and ends before they stop: imports, process starts and building are not measured.

    pip install -e '.[bench]'
    python scripts/benchmark_peers.py --peer all --seconds 10 --repeats 3
    python scripts/benchmark_peers.py --env ALE/Pong-v5 --t-max 20
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import tyro
from peers import PFRL_PROCESSES, SB3_ENVIRONMENTS, train_pfrl, train_sb3
from rich.console import Console
from rich.progress import track
from rich.table import Table

WARM_UP_SECONDS = 2.0
START_UP_LIMIT_SECONDS = 120.0

METRICS = {"steps_per_second": "steps/s", "cpu_us_per_step": "CPU us/step"}


@dataclass
class Options:
    """The command line.

    Attributes:
        peer: Which library to measure.
        env: Gymnasium id of an environment with vector observations, or of an Atari game (ALE/...);
            for PFRL with discrete actions.
        t_max: Steps of a rollout.
        seconds: Wall-clock seconds of one measurement. More seconds even out a noisy machine.
        repeats: Measurements of each peer; the table shows their median, minimum and maximum.
        json: Print one JSON object instead of the table.
    """

    peer: Literal["sb3", "pfrl", "all"] = "all"
    env: str = "CartPole-v1"
    t_max: int = 5
    seconds: float = 10.0
    repeats: int = 3
    json: bool = False

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ValueError(f"--seconds is {self.seconds}: give a number above 0")
        if self.repeats < 1:
            raise ValueError(f"--repeats is {self.repeats}: give 1 or more")


class Meter:
    """Counts the steps of several processes, where another process can read them.

    Every training process writes only its own slot, so no lock slows it down.
    """

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.steps = context.RawArray("q", processes)
        self.stop = context.Event()

    def tick(self, process: int, steps: int = 1) -> None:
        """Adds steps to the slot of the calling process."""
        self.steps[process] += steps


@dataclass(frozen=True)
class Peer:
    """A library to measure: `train(env_id, t_max, meter)` trains until `meter.stop` is set."""

    key: str
    title: str
    packages: tuple[str, ...]
    processes: int
    train: Callable[[str, int, Meter], None]


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


def measure(peer: Peer, env_id: str, t_max: int, seconds: float) -> dict[str, float]:
    """Trains a peer in a fresh process and reads its meter at two moments from outside.

    Returns:
        A value for each of `METRICS`. CPU time is user and system time of all training processes.

    Raises:
        RuntimeError: The peer did not start, or ended with an error.
    """
    meter = Meter(peer.processes)
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=peer.train, args=(env_id, t_max, meter))
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
        start, steps, cpu_seconds = _read(meter, child.pid)
        wait(seconds)
        end, steps_end, cpu_end = _read(meter, child.pid)
    finally:
        meter.stop.set()
        child.join()
    if child.exitcode != 0:
        raise RuntimeError(f"{peer.title}: a process failed, see the error above")

    steps = steps_end - steps
    if steps == 0:
        raise RuntimeError(f"{peer.title}: no step in {seconds} s, give more --seconds")
    return {
        "steps_per_second": steps / (end - start),
        "cpu_us_per_step": 1e6 * (cpu_end - cpu_seconds) / steps,
    }


def _read(meter: Meter, process: int | None) -> tuple[float, int, float]:
    """Wall-clock seconds, steps, and CPU seconds of a process and all below it."""
    program = psutil.Process(process)
    times = [one.cpu_times() for one in (program, *program.children(recursive=True))]
    spent = sum(one.user + one.system for one in times)
    return time.perf_counter(), sum(meter.steps), spent


def summary(repeats: list[dict[str, float]]) -> dict[str, Any]:
    """Returns the medians and the repeats, as the JSON output shows them."""
    medians = {metric: statistics.median(r[metric] for r in repeats) for metric in METRICS}
    return {**medians, "repeats": repeats}


def table(results: dict[str, list[dict[str, float]]], options: Options) -> Table:
    """Returns median, minimum and maximum of every peer as a table."""
    view = Table(
        title=f"{options.env}, T = {options.t_max}, {options.repeats} x {options.seconds:g} s"
    )
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
            results[name].append(measure(PEERS[name], options.env, options.t_max, options.seconds))
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
