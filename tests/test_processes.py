"""Workers as processes: the same learning, and an end whatever happens to a child."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.loading import load_agent
from a3c_tf.monitor import Progress
from a3c_tf.training import train_agent_async
from tests.envs import BrokenEnvError, FailingEnv, KnownEnv
from tests.helpers import STATEFUL, make_agent

SHARED_MEMORY = Path("/dev/shm")


def worker_processes() -> list[psutil.Process]:
    """The children of this program that are workers: those of the fork server."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.parent() != psutil.Process() and child.status() != psutil.STATUS_ZOMBIE
    ]


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process, no thread and no shared memory outlives a run."""
    threads = set(threading.enumerate())
    yield
    assert worker_processes() == []
    assert set(threading.enumerate()) <= threads
    assert list(SHARED_MEMORY.glob(f"a3c_tf-{os.getpid()}-*")) == []


def train(outdir: Path, make_env: Callable[[int, bool], gym.Env], **settings: Any) -> A3CAgent:
    """A short run with linear nets."""
    start = time.monotonic()
    on_tick = settings.pop("on_tick", lambda step, progress: None)

    def tick(step: int, progress: Progress) -> None:
        assert time.monotonic() - start < 60, "the run does not end"
        on_tick(step, progress)

    defaults: dict[str, Any] = {
        "backend": "processes",
        "agent": make_agent(KnownEnv()),
        "processes": 2,
        "steps": 400,
        "eval_interval": None,
        "eval_n_episodes": 2,
        "envs_per_worker": 2,
        "t_max": 3,
    }
    return train_agent_async(outdir, make_env=make_env, on_tick=tick, **(defaults | settings))


@pytest.mark.parametrize("options", [{}, STATEFUL], ids=["plain", "stateful"])
def test_same_weights_as_with_threads(tmp_path: Path, options: dict[str, Any]) -> None:
    """One worker and one seed: bit for bit, whatever the worker runs in."""
    trained = [
        train(
            tmp_path / backend,
            lambda index, test: gym.make("CartPole-v1"),
            agent=make_agent(gym.make("CartPole-v1"), **options),
            backend=backend,
            processes=1,
            steps=600,
        )
        for backend in ("threads", "processes")
    ]
    ours, theirs = (agent.model.get_weights() for agent in trained)
    assert any(np.any(array) for array in ours)
    for array, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(array, other)


def test_counts(tmp_path: Path) -> None:
    """Every step is counted, and the overshoot is less than workers x K x T."""
    counted: list[int] = []
    train(tmp_path, lambda index, test: KnownEnv(), on_tick=lambda step, _: counted.append(step))
    assert 400 <= counted[-1] < 400 + 2 * 2 * 3
    assert counted == sorted(counted)


@pytest.mark.parametrize("where", ["constructor", "reset", 7])
def test_error_in_a_child(tmp_path: Path, where: Any) -> None:
    """It ends the run as itself, with the child's traceback as its cause, and all is saved."""

    def make_env(index: int, test: bool) -> gym.Env:
        return FailingEnv(where) if index == 1 else KnownEnv()

    start = time.monotonic()
    with pytest.raises(BrokenEnvError) as caught:
        train(tmp_path, make_env, steps=10**9)
    assert time.monotonic() - start < 30
    assert "envs.py" in str(caught.value.__cause__)
    (saved,) = tmp_path.glob("*_except")
    assert load_agent(saved).act(KnownEnv().reset()[0]) in (0, 1)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(3), "worker 1 .* exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "worker 1 .* SIGKILL"),
    ],
)
def test_child_that_dies(tmp_path: Path, end: Callable[[], None], words: str) -> None:
    """Without a word of its own: an error that names the worker and says how it ended."""

    def make_env(index: int, test: bool) -> gym.Env:
        return KnownEnv(on_step=end) if index == 1 else KnownEnv()

    with pytest.raises(RuntimeError, match=words):
        train(tmp_path, make_env, steps=10**9)
    assert list(tmp_path.glob("*_except"))


def test_interrupt_with_a_child_stuck(tmp_path: Path) -> None:
    """Ctrl-C ends a run although an environment does not return from its step."""

    def make_env(index: int, test: bool) -> gym.Env:
        return KnownEnv(on_step=lambda: time.sleep(1000)) if index == 1 else KnownEnv()

    interrupted: list[float] = []

    def on_tick(step: int, progress: Progress) -> None:
        if step > 200:
            interrupted.append(time.monotonic())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, make_env, steps=10**9, on_tick=on_tick)
    assert time.monotonic() - interrupted[0] < 12
    assert list(tmp_path.glob("*_except"))


def test_fork_server_that_is_killed(tmp_path: Path) -> None:
    """The run goes on, and its end finds the children all the same, even one that is stuck."""
    notes = tmp_path / "stuck"

    def stick() -> None:
        notes.touch()
        time.sleep(1000)

    def make_env(index: int, test: bool) -> gym.Env:
        return KnownEnv(on_step=stick) if index == 1 else KnownEnv()

    children: list[psutil.Process] = []
    killed_at = 0

    def on_tick(step: int, progress: Progress) -> None:
        nonlocal killed_at
        if notes.exists() and not children:
            children.extend(worker_processes())
            children[0].parent().kill()
            killed_at = step
        if children and step > killed_at + 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", make_env, steps=10**9, on_tick=on_tick)
    assert len(children) == 2
    assert not [child for child in children if runs(child)]
    assert list((tmp_path / "run").glob("*_except"))


def test_reports_arrive(tmp_path: Path) -> None:
    """Episodes and statistics of the children reach scores.txt's counts and the summary."""
    train(tmp_path, lambda index, test: KnownEnv(), steps=2000, eval_interval=0)
    header, row = (line.split("\t") for line in (tmp_path / "scores.txt").read_text().splitlines())
    values = dict(zip(header, map(float, row), strict=True))
    assert values["episodes"] == pytest.approx(values["steps"] / 5, abs=4)
    assert np.isfinite(values["loss/total"])
