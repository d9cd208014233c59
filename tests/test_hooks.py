"""Global step hooks: every step once and in order, with the global agent in their hands."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from a3c_tf.agents.a3c import A3CAgent, A3CHyperparameters
from a3c_tf.agents.base import Agent
from a3c_tf.agents.learning import Rollout
from a3c_tf.agents.loading import load_agent
from a3c_tf.agents.n_step_q import NStepQAgent, NStepQHyperparameters
from a3c_tf.backends.processes import STOP_SECONDS
from a3c_tf.checkpoints import newest_checkpoint
from a3c_tf.cores import core_count
from a3c_tf.graphs import Tensor
from a3c_tf.hooks import LinearInterpolationHook, StepHook
from a3c_tf.monitor import Progress
from a3c_tf.networks import build_action_value
from a3c_tf.parameters import ParameterServer
from a3c_tf.quiet import keras, tf
from a3c_tf.schedules import Schedule
from a3c_tf.training import train_agent_async
from tests.envs import KnownEnv
from tests.helpers import make_agent

BACKENDS = ("threads", "processes")
WORKERS, K, T = 2, 2, 3
STEPS = 900


class SummingA3C(A3CAgent):
    """The gradient of every weight is the weight of the entropy bonus, whatever it sees."""

    def loss(
        self, rollout: Rollout, exploration: Tensor | float
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """That many times the sum of the weights."""
        return _times_the_weights(self, exploration)


class SummingQ(NStepQAgent):
    """The gradient of every trainable weight is 1."""

    def loss(
        self, rollout: Rollout, exploration: Tensor | float
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The sum of the weights."""
        return _times_the_weights(self, 1.0)


@keras.saving.register_keras_serializable("tests")
class ReadAndWrite(keras.optimizers.SGD):
    """SGD in two steps: what comes in between them is lost."""

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        """Keras's own subtracts in one."""
        variable.assign(variable - learning_rate * gradient)


def _times_the_weights(agent: Agent, factor: Tensor | float) -> tuple[Tensor, Sequence[Tensor]]:
    total = factor * tf.add_n([tf.reduce_sum(v) for v in agent.trainable_variables])
    return total, (total,) * len(agent.statistics)


def summing(kind: type[Agent] = SummingA3C, **hyperparameters: Any) -> Any:
    """Weights of 0, from which each push takes 1: what is lost, or comes in between, shows."""
    env = KnownEnv()
    hyperparameters |= {"learning_rate": Schedule.constant(1.0), "max_gradient_norm": 0.0}
    if kind is SummingA3C:
        model, settings = make_agent(env).model, A3CHyperparameters(**hyperparameters)
    else:
        model = build_action_value(env.observation_space, env.action_space, hidden_sizes=())
        settings = NStepQHyperparameters(**hyperparameters)
    model.set_weights([np.zeros_like(weights) for weights in model.get_weights()])
    spaces = env.observation_space, env.action_space
    return kind(model, *spaces, ReadAndWrite(), settings)


def numbers(agent: Any) -> list[float]:
    """The different values among the trained weights."""
    return np.unique(np.concatenate([np.ravel(w) for w in agent.model.get_weights()])).tolist()


class Meeting:
    """`make_env`: no environment steps before every worker has made its own.

    A worker process that starts late would find everything done by the others. Of threads only as
    many as there are cores can wait for each other: the next begins where one of them goes on.

    Args:
        directory: is made; where the workers, in whatever processes, see each other.
        workers: how many will come.
    """

    def __init__(self, directory: Path, workers: int) -> None:
        self.training: list[KnownEnv] = []
        self._directory = directory
        self._workers = workers
        self._main_process = os.getpid()
        directory.mkdir()

    def __call__(self, index: int, test: bool) -> gym.Env:
        """An environment for worker `index`; those of threads are kept."""
        if test:
            return KnownEnv()
        (self._directory / str(index)).touch()
        self.training.append(KnownEnv(index, on_step=self._wait))
        return self.training[-1]

    def _wait(self) -> None:
        in_threads = os.getpid() == self._main_process
        expected = min(self._workers, core_count()) if in_threads else self._workers
        deadline = time.monotonic() + 30
        while len(list(self._directory.iterdir())) < expected:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def train(
    directory: Path,
    backend: str,
    agent: Agent,
    hooks: Sequence[Any],
    workers: int = WORKERS,
    make_env: Any = None,
    **settings: Any,
) -> Agent:
    """A short run into `directory/run`, without evaluation."""
    start = time.monotonic()

    def on_tick(step: int, progress: Progress) -> None:
        assert time.monotonic() - start < 60, "the run does not end"

    defaults: dict[str, Any] = {
        "steps": STEPS,
        "eval_interval": None,
        "envs_per_worker": K,
        "t_max": T,
        "on_tick": on_tick,
    }
    return train_agent_async(
        directory / "run",
        workers,
        make_env or Meeting(directory / "met", workers),
        agent=agent,
        global_step_hooks=hooks,
        backend=backend,
        **(defaults | settings),
    )


def summary(directory: Path) -> dict[str, Any]:
    """What summary.json holds."""
    return json.loads((directory / "run" / "summary.json").read_text())


def pushes(directory: Path) -> int:
    """How many gradients the weights have received."""
    return newest_checkpoint(directory / "run" / "checkpoints")[2].version


# A straight line ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "value"), [(-3, 2.0), (0, 2.0), (1, 2.0), (51, 1.5), (76, 1.25), (101, 1.0), (200, 1)]
)
def test_straight_line(step: int, value: float) -> None:
    """From `start_value` at step 1 to `stop_value` at `total_steps`, and never beyond."""
    values: list[float] = []
    hook = LinearInterpolationHook(101, 2.0, 1.0, lambda env, agent, value: values.append(value))
    hook(None, make_agent(KnownEnv()), step)
    assert values == [value]
    assert type(values[0]) is float


def test_setter_gets_what_the_hook_gets() -> None:
    """The environment and the agent, and then the value."""
    calls: list[Any] = []
    env, agent = object(), make_agent(KnownEnv())
    LinearInterpolationHook(10, 3.0, 3.0, lambda *arguments: calls.append(arguments))(env, agent, 5)
    assert calls == [(env, agent, 3.0)]


def test_step_hook_is_abstract() -> None:
    """A subclass says what it does at a step."""
    with pytest.raises(TypeError, match="abstract"):
        StepHook()  # type: ignore[abstract]


def test_same_learning_rates_as_a_schedule() -> None:
    """A hook that sets the learning rate of every step, and a schedule through the same points."""
    schedule = Schedule(1.0, 0.2, 50)
    hook = LinearInterpolationHook(
        50, schedule(1), 0.2, lambda env, agent, value: agent.change(learning_rate=value)
    )
    hooked = ParameterServer(
        make_agent(KnownEnv(), learning_rate=Schedule.constant(1.0)), hooks=[hook]
    )
    scheduled = ParameterServer(make_agent(KnownEnv(), learning_rate=schedule))
    for steps in (1, 2, 3, 0, 20, 23, 1, 40):
        for server in (hooked, scheduled):
            server.count(steps, 0)
        assert float(hooked.learning_rate()) == pytest.approx(float(scheduled.learning_rate()))


# A run with hooks ---------------------------------------------------------------------------------


class Call(NamedTuple):
    """What a hook was given."""

    name: str
    env: Any
    agent: Any
    step: int


class HookedRun(NamedTuple):
    """A run with two hooks, of which the second stops the learning at step 1."""

    backend: str
    directory: Path
    agent: Any
    make_env: Meeting
    calls: list[Call]
    frozen: list[float]


@pytest.fixture(scope="module", params=BACKENDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HookedRun:
    """One for each backend."""
    directory = tmp_path_factory.mktemp(request.param)
    calls: list[Call] = []
    frozen: list[float] = []

    def freeze(env: Any, agent: Any, step: int) -> None:
        calls.append(Call("second", env, agent, step))
        if step == 1:
            agent.change(learning_rate=0.0)
            frozen.extend(numbers(agent))

    make_env = Meeting(directory / "met", WORKERS)
    agent = train(
        directory,
        request.param,
        summing(entropy_coefficient=Schedule.constant(1.0)),
        [lambda *arguments: calls.append(Call("first", *arguments)), freeze],
        make_env=make_env,
    )
    return HookedRun(request.param, directory, agent, make_env, calls, frozen)


def test_every_step_once_and_in_order(run: HookedRun) -> None:
    """1, 2, 3, ... up to the step at which the run ends, not one more."""
    steps = [call.step for call in run.calls if call.name == "first"]
    assert steps == list(range(1, summary(run.directory)["steps"] + 1))
    assert STEPS <= len(steps) < STEPS + WORKERS * K * T


def test_hooks_in_the_order_given(run: HookedRun) -> None:
    """All of them at a step, before the next step."""
    assert len(run.calls) % 2 == 0
    for first, second in zip(run.calls[::2], run.calls[1::2], strict=True):
        assert (first.name, second.name) == ("first", "second")
        assert first[1:] == second[1:]


def test_environment_that_a_hook_gets(run: HookedRun) -> None:
    """The vector environment of the worker that took the step, or None if it is elsewhere."""
    steps = Counter(id(call.env) for call in run.calls if call.name == "first")
    vectors = {id(call.env): call.env for call in run.calls}
    if run.backend == "processes":
        assert list(vectors.values()) == [None]
        return
    assert len(vectors) == WORKERS
    for key, envs in vectors.items():
        of_worker = [env.unwrapped for env in envs.envs]
        assert len(of_worker) == K
        assert all(any(env is made for made in run.make_env.training) for env in of_worker)
        assert steps[key] == sum(len(env.history) for env in of_worker)


def test_agent_that_a_hook_gets(run: HookedRun) -> None:
    """The global one, which the run returns."""
    assert all(call.agent is run.agent for call in run.calls)


def test_change_of_the_learning_rate(run: HookedRun) -> None:
    """It goes for the next push on: here, no weight changes after the first one."""
    assert pushes(run.directory) > 100
    assert run.frozen == [-1.0]
    assert numbers(run.agent) == [-1.0]


# What a hook may do -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_change_reaches_every_worker(tmp_path: Path, backend: str) -> None:
    """With the next weights that it gets: no worker pushes more than once with the old value."""

    def hook(env: Any, agent: Agent, step: int) -> None:
        if step == 1:
            agent.change(entropy_coefficient=1.0)

    agent = summing(entropy_coefficient=Schedule.constant(0.0))
    train(tmp_path, backend, agent, [hook])
    (number,) = numbers(agent)
    assert 1 <= pushes(tmp_path) + number <= WORKERS


@pytest.mark.parametrize("backend", BACKENDS)
def test_error_of_a_hook(tmp_path: Path, backend: str) -> None:
    """It ends the run as itself, nobody waits for the child in vain, and the agent is saved."""
    error = LookupError("from a hook")
    raised_at: list[float] = []

    def hook(env: Any, agent: Agent, step: int) -> None:
        if step == 50:
            raised_at.append(time.monotonic())
            raise error

    with pytest.raises(LookupError) as caught:
        train(tmp_path, backend, make_agent(KnownEnv()), [hook], steps=10**9)
    assert caught.value is error
    assert time.monotonic() - raised_at[0] < STOP_SECONDS
    assert summary(tmp_path)["stopped_by"] == "error"
    saved = load_agent(tmp_path / "run" / f"{summary(tmp_path)['steps']}_except")
    assert saved.act(KnownEnv().reset()[0]) in (0, 1)
