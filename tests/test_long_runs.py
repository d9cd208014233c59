"""Long runs: `pytest -n 0 -m slow tests/test_long_runs.py`."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

from a3c_tf import monitor
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.learning import Rollout
from a3c_tf.build import build_agent
from a3c_tf.checkpoints import load_checkpoint, newest_checkpoint, save_checkpoint
from a3c_tf.config import Backend, TrainConfig, load_preset
from a3c_tf.envs.factory import RegisteredEnv, spaces_of
from a3c_tf.graphs import CompiledFunction, Tensor
from a3c_tf.monitor import Progress
from a3c_tf.networks import build_actor_critic
from a3c_tf.parameters import Snapshot
from a3c_tf.quiet import keras, tf
from a3c_tf.schedules import Schedule
from a3c_tf.training import train_agent_async
from tests.envs import KnownEnv

MEGABYTE = 2**20
BACKENDS = ["threads", "processes"]


def family() -> list[psutil.Process]:
    """This program and all that it has started."""
    program = psutil.Process()
    return [program, *program.children(recursive=True)]


# Memory -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_and_traces_stay(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 000 000 steps, evaluations included: less than 1 MB in 100 000, and no new trace."""
    made: list[CompiledFunction] = []
    construct = CompiledFunction.__init__

    def counted(self: CompiledFunction, *arguments: object, **named: object) -> None:
        construct(self, *arguments, **named)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(CompiledFunction, "__init__", counted)
    config = TrainConfig().updated(load_preset("CartPole-v1"), "preset")
    make_env = RegisteredEnv(config.env)
    agent = build_agent(config, *spaces_of(make_env))
    seen: list[tuple[int, int, int]] = []

    def on_tick(step: int, progress: Progress) -> None:
        memory = sum(process.memory_info().rss for process in family())
        seen.append((step, memory, sum(function.trace_count for function in made)))

    train_agent_async(
        tmp_path,
        config.workers,
        make_env,
        agent=agent,
        steps=3_000_000,
        eval_interval=config.eval_interval,
        eval_n_episodes=20,
        envs_per_worker=config.envs_per_worker,
        t_max=config.t_max,
        backend=backend,
        on_tick=on_tick,
    )
    # Not the last seconds: worker processes end one after the other.
    late = [row for row in seen if 300_000 <= row[0] < 2_900_000]
    steps, memory, traces = np.array(late).T
    slope = np.polyfit(steps / 1e5, memory / MEGABYTE, 1)[0]
    growth = (memory[-1] - memory[0]) / MEGABYTE
    print(
        f"{backend}: {steps[0]} to {steps[-1]} steps, RSS {memory[0] / MEGABYTE:.0f} MB grew by "
        f"{growth:.1f} MB, {slope:.3f} MB in 100 000 steps"
    )
    assert slope < 1
    assert growth < 20
    assert set(traces) == {traces[0]}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_runs_leave_nothing(tmp_path: Path, backend: Backend) -> None:
    """30 runs in one program, after a few that warm it up: memory, threads, children, files."""
    make_env = RegisteredEnv("CartPole-v1")
    spaces = spaces_of(make_env)

    def held() -> tuple[float, int, int, int]:
        gc.collect()
        program = psutil.Process()
        children = program.children(recursive=True)
        memory = program.memory_info().rss / MEGABYTE
        return memory, threading.active_count(), len(children), program.num_fds()

    seen = []
    for number in range(35):
        config = TrainConfig(seed=number, hidden_sizes=(16,))
        train_agent_async(
            tmp_path / str(number),
            2,
            make_env,
            agent=build_agent(config, *spaces),
            steps=1000,
            eval_interval=500,
            eval_n_episodes=2,
            eval_envs=2,
            checkpoint_seconds=0.2,
            backend=backend,
        )
        seen.append(held())
    print(f"{backend}: MB, threads, children, files after 5 runs {seen[4]}, 30 later {seen[-1]}")
    print("MB by run:", " ".join(f"{row[0]:.0f}" for row in seen))
    assert seen[-1][0] - seen[4][0] < 30
    assert seen[-1][1:] == seen[4][1:]


# One version ------------------------------------------------------------------------------------


class OnesAgent(A3CAgent):
    """Every gradient is 1 for all weights, so that plain SGD with step size 1 counts them."""

    def loss(
        self, rollout: Rollout, exploration: Tensor | float
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The sum of all weights."""
        total = tf.add_n([tf.reduce_sum(variable) for variable in self.variables])
        return total, [tf.constant(0.0)] * len(self.statistics)


class EndlessEnv(KnownEnv):
    """Takes steps for ever."""

    def __init__(self) -> None:
        super().__init__(rewards=(1.0,))

    def step(self, action: Any) -> Any:
        """Nothing changes."""
        return self._observe(), 1.0, False, False, {}


def ones_agent() -> OnesAgent:
    """All its weights are 0, and after n gradients -n."""
    env = EndlessEnv()
    model = build_actor_critic(env.observation_space, env.action_space, hidden_sizes=(8,))
    model.set_weights([np.zeros_like(weights) for weights in model.get_weights()])
    agent = OnesAgent(model, env.observation_space, env.action_space, keras.optimizers.SGD())
    agent.hyperparameters = agent.hyperparameters_type(
        learning_rate=Schedule.constant(1.0), max_gradient_norm=0.0
    )
    return agent


def make_endless(index: int, test: bool) -> gym.Env:
    """For all workers."""
    return EndlessEnv()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpoints_hold_one_version(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 workers for 2 minutes, saved and evaluated all the time: no gradient lost or doubled.

    Nothing of another version is in a checkpoint: neither weights nor counters.
    """
    workers, t_max, k, seconds = 16, 5, 2, 120.0
    start, ticks, versions = time.monotonic(), [], []

    def check(path: Path, exact: bool = True) -> Snapshot:
        checkpoint = load_checkpoint(path)
        snapshot = checkpoint.snapshot
        for weights in snapshot.weights:
            assert (weights == -snapshot.version).all()
        assert int(snapshot.optimizer[0]) == snapshot.version
        if exact:  # until the end, where rollouts are broken off
            assert snapshot.global_step == snapshot.version * t_max * k
        return snapshot

    def save_and_load(root: Path, *arguments: Any, **named: Any) -> Path:
        path = save_checkpoint(root, *arguments, **named)
        versions.append(check(path, exact=time.monotonic() - start < seconds).version)
        return path

    def on_tick(step: int, progress: Progress) -> None:
        ticks.append(step)
        if time.monotonic() - start >= seconds:
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor, "save_checkpoint", save_and_load)
    agent = ones_agent()
    with pytest.raises(KeyboardInterrupt):
        train_agent_async(
            tmp_path,
            workers,
            make_endless,
            agent=agent,
            steps=10**9,
            eval_interval=1,
            eval_n_steps=20,
            eval_n_episodes=None,
            envs_per_worker=k,
            t_max=t_max,
            checkpoint_seconds=0.2,
            backend=backend,
            on_tick=on_tick,
        )
    last = check(newest_checkpoint(tmp_path / "checkpoints").path, exact=False)
    print(
        f"{backend}: {len(versions)} checkpoints, {last.version} gradients, "
        f"{last.global_step} steps"
    )
    assert 0 <= last.global_step - last.version * t_max * k <= workers * t_max * k
    assert len(versions) > 50
    assert versions == sorted(versions)
    assert ticks[-1] > ticks[len(ticks) // 2]  # to the end
