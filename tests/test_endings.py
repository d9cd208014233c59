"""Runs that would not end by themselves: stuck hooks, evaluations and environments."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.loading import load_agent
from a3c_tf.agents.n_step_q import NStepQAgent
from a3c_tf.backends.turns import FixedOrder, Turns
from a3c_tf.envs.trial import check_env
from a3c_tf.errors import StalledError, in_time
from a3c_tf.networks import build_action_value, build_actor_critic
from a3c_tf.training import train_agent_async
from tests.envs import KnownEnv
from tests.helpers import make_agent

FOR_EVER = 1000.0


def train(outdir: Path, make_env: Callable[[int, bool], gym.Env], **settings: Any) -> A3CAgent:
    """A short run with linear nets, whose workers are missed after a second."""
    defaults: dict[str, Any] = {
        "agent": make_agent(KnownEnv()),
        "steps": 10**9,
        "eval_interval": None,
        "t_max": 3,
        "stall_timeout": 0.5,
    }
    return train_agent_async(outdir, 2, make_env, **(defaults | settings))


def sleeping_env(index: int, test: bool, where: str, after: int = 4) -> gym.Env:
    """Sleeps for ever after some steps, in the evaluation or in worker 1."""
    steps = iter(range(after))

    def on_step() -> None:
        if next(steps, None) is None and (test if where == "evaluation" else index == 1):
            time.sleep(FOR_EVER)

    return KnownEnv(on_step=on_step)


def test_stuck_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported with the place where it is, and then ends the run."""
    with pytest.raises(StalledError, match=r"worker 1 has made no step for .* s"):
        train(tmp_path, lambda index, test: sleeping_env(index, test, "worker"))
    reported = [r.getMessage() for r in caplog.records if "it is here" in r.getMessage()]
    assert len(reported) == 1
    assert "time.sleep(FOR_EVER)" in reported[0]
    assert "worker 1 (KnownEnv) does not return and is left alone" in caplog.text
    assert list(tmp_path.glob("*_except"))


@pytest.mark.parametrize("interval", [10, 0], ids=["while training", "at the end"])
def test_stuck_evaluation(tmp_path: Path, interval: int) -> None:
    """It is watched like a worker, also when the workers have ended; what was trained is saved."""
    settings = {"eval_interval": interval, "steps": 10**9 if interval else 60}
    with pytest.raises(StalledError, match="evaluation has made no step"):
        train(tmp_path, lambda i, test: sleeping_env(i, test, "evaluation"), **settings)
    (saved,) = tmp_path.glob("*_except")
    assert load_agent(saved).act(KnownEnv().reset()[0]) in (0, 1)


def test_interrupt_in_the_last_evaluation(tmp_path: Path) -> None:
    """Ctrl-C ends it, although its environment never returns."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(4.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            train(
                tmp_path,
                lambda i, test: sleeping_env(i, test, "evaluation"),
                eval_interval=0,
                steps=60,
                stall_timeout=0.0,
            )
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)
    assert list(tmp_path.glob("*_except"))


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_stuck_hook(tmp_path: Path, caplog: pytest.LogCaptureFixture, backend: str) -> None:
    """The run ends, though the hook holds the global weights, which cannot be saved then."""
    released = threading.Event()

    def hook(env: Any, agent: Any, step: int) -> None:
        if step == 20:
            released.wait(60.0)

    try:
        with pytest.raises(StalledError, match=r"worker \d has made no step"):
            train(
                tmp_path,
                lambda index, test: KnownEnv(),
                global_step_hooks=[hook],
                backend=backend,
                stall_timeout=0.5 if backend == "threads" else 3.0,
            )
    finally:
        released.set()
    assert "by a global step hook that does not return" in caplog.text
    assert "in hook" in caplog.text  # the stack


def test_slow_evaluation_hook_at_the_end(tmp_path: Path) -> None:
    """A monitor that is busy when the workers have ended is waited for: nothing is wrong."""

    def hook(agent: Any, scores: Any, step: int) -> None:
        time.sleep(6.0)

    settings = {"steps": 300, "eval_interval": 10, "evaluation_hooks": [hook]}
    train(tmp_path, lambda index, test: KnownEnv(), stall_timeout=0.0, **settings)
    assert list(tmp_path.glob("*_finish"))


def test_worker_stuck_after_success(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A solved run stays one; the worker is named and left alone."""
    agent = train(
        tmp_path,
        lambda index, test: sleeping_env(index, test, "worker", after=300),
        eval_interval=900,
        successful_score=5.0,
        stall_timeout=0.0,
    )
    assert agent.act(KnownEnv().reset()[0]) in (0, 1)
    assert "worker 1 (KnownEnv) does not return" in caplog.text


# Turns --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [Turns(1), FixedOrder(2)], ids=["free", "ordered"])
def test_waiting_for_a_turn_ends_with_the_run(turns: Turns | FixedOrder) -> None:
    """Although the one who has it never hands it on."""
    stop = threading.Event()
    with turns.turn(0, stop.is_set):
        entered = threading.Event()

        def wait() -> None:
            with turns.turn(1, stop.is_set):
                entered.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.3)
        stop.set()
        assert entered.wait(5.0)
        thread.join()


def test_fixed_order() -> None:
    """All get ready in order; then it begins with the given one, and goes round and round."""
    order, log = FixedOrder(3, first=2), []

    def take(member: int) -> None:
        for number in range(3):
            with order.turn(member, lambda: False):
                log.append((member, number))
        order.leave(member)

    threads = [threading.Thread(target=take, args=(member,)) for member in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert [member for member, _ in log] == [0, 1, 2, 2, 0, 1, 2, 0, 1]


# In time ------------------------------------------------------------------------------------------


def test_in_time() -> None:
    """Waits as long as there is no hurry; then not for long. Errors come out as themselves."""
    in_time("a sleep", lambda: time.sleep(0.3), 0.0, in_a_hurry=lambda: False)
    with pytest.raises(TimeoutError, match=r"a sleep has not returned in 0.2 s"):
        in_time("a sleep", lambda: time.sleep(3.0), 0.2)
    with pytest.raises(ZeroDivisionError):
        in_time("a division", lambda: 1 / 0, 1.0)  # type: ignore[arg-type, return-value]


# Said by name -------------------------------------------------------------------------------------


def test_nets_of_the_wrong_shape() -> None:
    """The model, its outputs and the space are named, before anything is traced."""
    env = KnownEnv()
    spaces = env.observation_space, env.action_space
    five = gym.spaces.Discrete(5)
    with pytest.raises(ValueError, match=r"'actor_critic' has outputs .*5.* Discrete\(2\)"):
        A3CAgent(build_actor_critic(spaces[0], five), *spaces)
    with pytest.raises(ValueError, match=r"'action_value' has outputs "):
        A3CAgent(build_action_value(*spaces), *spaces)
    with pytest.raises(ValueError, match=r"'action_value' has an output .*5.* Discrete\(2\)"):
        NStepQAgent(build_action_value(spaces[0], five), *spaces)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_change_to_no_number(value: float) -> None:
    """It would spoil the weights at the next push."""
    with pytest.raises(ValueError, match="learning_rate cannot be changed to"):
        make_agent(KnownEnv()).change(learning_rate=value)


class _NoInfo(KnownEnv):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], None


class _NoReward(KnownEnv):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, None, *rest


@pytest.mark.parametrize(
    ("env", "message"),
    [(_NoInfo(), "step returned the info None"), (_NoReward(), "step returned the reward None")],
)
def test_faulty_step(env: gym.Env, message: str) -> None:
    """One line that names the environment; it is closed."""
    with pytest.raises(ValueError, match=message):
        check_env(env)
    assert env.closed  # type: ignore[attr-defined]


def test_logger_is_the_given_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also for what the watchdog and the end of a run have to say."""
    with pytest.raises(StalledError):
        train(
            tmp_path,
            lambda index, test: sleeping_env(index, test, "worker"),
            logger=logging.getLogger("mine"),
        )
    assert {record.name for record in caplog.records} == {"mine"}
