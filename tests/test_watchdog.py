"""Workers that make no step any more: who they are, where they are, and the end of the run."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from a3c_tf import watchdog
from a3c_tf.agents.loading import load_agent
from a3c_tf.backends import supervisor
from a3c_tf.errors import StalledError
from a3c_tf.monitor import Progress
from a3c_tf.training import train_agent_async
from a3c_tf.watchdog import Watchdog
from tests.envs import KnownEnv
from tests.helpers import make_agent
from tests.test_processes import worker_processes


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Ends what is stuck when a test ends, and with it the threads."""
    monkeypatch.setattr(supervisor, "GRACE_SECONDS", 1.0)
    before = set(threading.enumerate())
    event = threading.Event()
    yield event
    event.set()
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(threading.enumerate()) <= before
    assert worker_processes() == []


def train(
    outdir: Path, make_env: Callable[[int, bool], gym.Env], workers: int = 2, **settings: Any
) -> None:
    """A short run with linear nets, without evaluation."""
    start = time.monotonic()
    told = settings.pop("on_tick", lambda step, progress: None)

    def on_tick(step: int, progress: Progress) -> None:
        assert time.monotonic() - start < 60, "the run does not end"
        told(step, progress)

    defaults: dict[str, Any] = {
        "agent": make_agent(KnownEnv()),
        "steps": 10**9,
        "eval_interval": None,
        "t_max": 3,
        "logger": logging.getLogger("mine"),
        "on_tick": on_tick,
    }
    train_agent_async(outdir, workers, make_env, **(defaults | settings))


class StuckEnv(KnownEnv):
    """Does not return from a step, some steps after its beginning.

    Args:
        release: ends that; None for never.
    """

    def __init__(self, release: threading.Event | None = None) -> None:
        super().__init__()
        self._release = release

    def step(self, action: Any) -> Any:
        """Takes one step."""
        if len(self.history) == 20:
            self.wait_for_a_server()
        return super().step(action)

    def wait_for_a_server(self) -> None:
        """Stands for what an environment may wait for."""
        if self._release is None:
            time.sleep(1000)
        else:
            self._release.wait(60)


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the logger got of workers that stand still."""
    messages = [record.getMessage() for record in caplog.records if record.name == "mine"]
    return [message for message in messages if "it is here" in message]


def test_stuck_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, release: threading.Event
) -> None:
    """Named with the place where it is; then the run ends, saved."""

    def make_env(index: int, test: bool) -> gym.Env:
        return StuckEnv(release) if index == 1 and not test else KnownEnv()

    with pytest.raises(StalledError, match=r"^worker 1 has made no step for \d+ s"):
        train(tmp_path, make_env, stall_timeout=0.5)
    (report,) = reports(caplog)
    assert report.startswith("worker 1 has made no step for ")
    assert "in wait_for_a_server" in report
    (saved,) = tmp_path.glob("*_except")
    assert load_agent(saved).act(KnownEnv().reset()[0]) in (0, 1)


def test_stuck_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, release: threading.Event
) -> None:
    """As a thread; the child is ended."""

    def make_env(index: int, test: bool) -> gym.Env:
        return StuckEnv() if index == 1 and not test else KnownEnv()

    with pytest.raises(StalledError, match=r"^worker 1 has made no step for \d+ s"):
        train(tmp_path, make_env, backend="processes", stall_timeout=1.0)
    (report,) = reports(caplog)
    assert report.startswith("worker 1 has made no step for ")
    assert "in wait_for_a_server" in report
    (saved,) = tmp_path.glob("*_except")
    load_agent(saved)


@pytest.mark.parametrize("deterministic", [False, True])
def test_stuck_in_close(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    release: threading.Event,
    deterministic: bool,
) -> None:
    """After the last step; the others have ended well."""

    class Sticks(KnownEnv):
        def close(self) -> None:
            release.wait(60)

    def make_env(index: int, test: bool) -> gym.Env:
        return Sticks() if index == 1 and not test else KnownEnv()

    settings = {"deterministic": deterministic, "steps": 200, "stall_timeout": 0.5}
    with pytest.raises(StalledError, match=r"^worker 1 has made no step for \d+ s"):
        train(tmp_path, make_env, **settings)
    (report,) = reports(caplog)
    assert "in close" in report
    assert list(tmp_path.glob("*_except"))


def test_everybody_waits_for_the_stuck_one(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    release: threading.Event,
) -> None:
    """With more workers than cores, the others get no turn; the run ends, and it is named."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)

    def make_env(index: int, test: bool) -> gym.Env:
        return StuckEnv(release) if index == 1 and not test else KnownEnv()

    with pytest.raises(StalledError):
        train(tmp_path, make_env, workers=3, stall_timeout=0.5)
    (report,) = [report for report in reports(caplog) if "in wait_for_a_server" in report]
    assert report.startswith("worker 1 has made no step for ")
    assert list(tmp_path.glob("*_except"))


def test_fixed_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, release: threading.Event
) -> None:
    """Workers that take turns one after the other wait in vain no longer than any."""

    def make_env(index: int, test: bool) -> gym.Env:
        return StuckEnv(release) if index == 1 and not test else KnownEnv()

    with pytest.raises(StalledError):
        train(tmp_path, make_env, deterministic=True, stall_timeout=0.5)
    assert any("in wait_for_a_server" in report for report in reports(caplog))
    assert list(tmp_path.glob("*_except"))


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_slow_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, release: threading.Event, backend: str
) -> None:
    """One that steps now and then is not reported, nor one that starts slowly."""

    def make_env(index: int, test: bool) -> gym.Env:
        return KnownEnv(on_step=lambda: time.sleep(0.2) if index == 1 else None)

    seconds = 1.0  # a child takes longer to start
    train(tmp_path, make_env, workers=2, steps=1, stall_timeout=seconds, backend=backend)
    assert reports(caplog) == []


def test_reported_again(release: threading.Event) -> None:
    """A worker that has gone on and stands still once more."""
    clock, worker, log = _Clock(), _Worker(), _Log()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watchdog, "monotonic", clock)
        dog = Watchdog([worker], 10, log)  # type: ignore[arg-type, list-item]
        for _ in range(3):
            worker.beats += 1
            dog.look()
            clock.now += 9
            dog.look()
            clock.now += 3
            dog.look()
            dog.look()
        assert len(log.lines) == 3
        clock.now += 9
        with pytest.raises(StalledError, match="worker 7 has made no step for 21 s"):
            dog.look()


def test_before_the_first_step() -> None:
    """A worker has a minute at least to start in, then it is looked at like any other."""
    clock, worker, log = _Clock(), _Worker(), _Log()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watchdog, "monotonic", clock)
        dog = Watchdog([worker], 1, log)  # type: ignore[arg-type, list-item]
        clock.now += 59
        dog.look()
        assert log.lines == []
        clock.now += 2
        dog.look()
        assert len(log.lines) == 1
        clock.now += 60
        with pytest.raises(StalledError):
            dog.look()


def test_switched_off() -> None:
    """0 stands for never."""
    clock, log = _Clock(), _Log()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watchdog, "monotonic", clock)
        dog = Watchdog([_Worker()], 0, log)  # type: ignore[arg-type, list-item]
        clock.now += 10**6
        dog.look()
    assert log.lines == []


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class _Worker:
    index = 7
    beats = 0
    active = True
    name = "worker 7"

    def stack(self) -> str:
        return "somewhere"


class _Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def error(self, *arguments: Any) -> None:
        self.lines.append(arguments[0] % arguments[1:])
