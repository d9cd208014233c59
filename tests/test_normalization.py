"""Observations and rewards in units of their own spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.loading import load_agent
from a3c_tf.commands.train import train as train_command
from a3c_tf.envs.runner import EnvRunner
from a3c_tf.evaluation import Evaluator
from a3c_tf.networks import build_actor_critic
from a3c_tf.normalization import Normalizations, RunningNormalization
from a3c_tf.parameters import ParameterServer
from a3c_tf.quiet import keras, tf
from a3c_tf.schedules import Schedule
from a3c_tf.training import train_agent_async
from a3c_tf.worker import Worker
from tests.envs import ABCEnv, KnownEnv, Observation
from tests.helpers import make_agent, rollout_of, stop_after, vector

Floats = npt.NDArray[Any]


def made(shape: tuple[int, ...] = (3,), **settings: Any) -> RunningNormalization:
    """A layer that has seen nothing."""
    layer = RunningNormalization(**settings)
    layer.build((None, *shape))
    return layer


def see(layer: RunningNormalization, values: Any, valid: Any = None) -> None:
    """Merges a batch."""
    values = np.asarray(values)
    valid = np.ones(len(values)) if valid is None else valid
    layer.merge(layer.moments(tf.constant(values), tf.constant(valid, tf.float32)))


def statistics(layer: RunningNormalization) -> tuple[float, Floats, Floats]:
    """Count, mean and variance."""
    return float(layer.count), layer.mean.numpy(), layer.variance.numpy()


def assert_statistics(layer: RunningNormalization, values: Floats, **tolerances: float) -> None:
    """They are NumPy's, of all values, [N, ...]."""
    count, mean, variance = statistics(layer)
    assert count == len(values)
    spread = np.sqrt(values.var(0)).max()
    np.testing.assert_allclose(mean / spread, values.mean(0) / spread, **tolerances)
    np.testing.assert_allclose(variance, values.var(0), **tolerances)


# The layer --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "spread", "error"),
    [(0.0, 1.0, 1e-5), (-3.0, 1e-3, 1e-3), (1e4, 1.0, 0.01), (0.0, 1e6, 1e-5)],
)
def test_statistics_of_batches_in_any_order(offset: float, spread: float, error: float) -> None:
    """Those of all valid rows together, whatever the others are."""
    rng = np.random.default_rng(0)
    batches = []
    for size in rng.integers(1, 40, 50):
        drift = rng.normal(size=3)  # the batches are not alike
        values = offset + spread * (drift + rng.normal(size=(size, 3)))
        batches.append((values.astype(np.float32), rng.random(size) < 0.8))
    batches.append((np.ones((4, 3), np.float32), np.zeros(4, bool)))
    seen = np.concatenate([values[valid] for values, valid in batches]).astype(float)
    for _ in range(3):
        layer = made()
        for number in rng.permutation(len(batches)):
            values, valid = batches[number]
            see(layer, np.where(valid[:, None], values, offset + 100 * spread), valid)
        assert_statistics(layer, seen, atol=error, rtol=error)


def test_nothing_seen() -> None:
    """Numbers stay as they are, and an empty batch changes nothing, at first and later."""
    layer = made()
    rows = np.array([[1.0, -2.0, 3.0]], np.float32)
    see(layer, rows, [0.0])
    np.testing.assert_allclose(layer(rows), rows)
    see(layer, 5.0 * np.random.default_rng(0).normal(size=(9, 3)))
    before = statistics(layer)
    see(layer, rows, [0.0])
    for ours, theirs in zip(before, statistics(layer), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("count", "size"), [(2.0**24, 1.0), (2.0**26, 5.0), (2.0**27, 40.0)])
def test_statistics_do_not_drift(count: float, size: float) -> None:
    """After so many steps that float32 cannot count them: more of the same changes nothing."""
    layer = made(())
    layer.count.assign(count)
    layer.mean.assign(2.0)
    layer.variance.assign(0.3)
    batch = tf.constant([size, 2.0, size * 0.3], tf.float32)

    @tf.function(jit_compile=True)
    def merge_often() -> Any:
        def merge(number: Any) -> Any:
            layer.merge(batch)
            return [number + 1]

        return tf.while_loop(lambda number: number < 5_000_000, merge, [tf.constant(0)])

    merge_often()
    np.testing.assert_allclose(statistics(layer)[1:], [2.0, 0.3], rtol=1e-5)


def test_output() -> None:
    """From the mean, in units of the standard deviation, within 10 of them; in float32."""
    layer = made((2,))
    see(layer, [[1.0, 10.0], [3.0, 50.0]])
    np.testing.assert_allclose(layer(np.array([[4.0, 0.0], [2.0, 70.0]])), [[2, -1.5], [0, 2]])
    np.testing.assert_allclose(layer(np.array([[1e9, -1e9], [13.0, 231.0]])), [[10, -10], [10, 10]])
    assert layer(np.array([[4, 0]])).dtype == tf.float32
    plain = made((2,), center=False)
    see(plain, [[1.0, 10.0], [3.0, 50.0]])
    np.testing.assert_allclose(plain(np.array([[4.0, 0.0]])), [[4.0, 0.0]])
    np.testing.assert_allclose(plain(np.array([[1.0, 40.0]])), [[1.0, 2.0]])


def test_numbers_far_from_zero() -> None:
    """Keep all the digits that they have."""
    layer = made((1,))
    see(layer, 1e6 + np.array([[-1.0], [0.0], [1.0]]))
    np.testing.assert_allclose(
        layer(np.array([[1e6 - 0.5], [1e6], [1e6 + 2.0]])),
        np.array([[-0.5], [0.0], [2.0]]) / np.sqrt(2 / 3),
        atol=1e-5,
    )


def test_numbers_that_never_change() -> None:
    """Are not divided by zero; the first that differs is as far away as can be."""
    layer = made((1,))
    see(layer, np.full((50, 1), 7.0))
    np.testing.assert_array_equal(layer(np.array([[7.0], [7.1], [-3.0]])), [[0], [10], [-10]])


def test_images() -> None:
    """In units of their range, once; what hardly ever changes is not amplified a lot."""
    space = gym.spaces.Box(0, 255, (2, 2, 1), np.uint8)
    model = build_actor_critic(space, gym.spaces.Discrete(2), (4,), normalize=True)
    (layer,) = Normalizations({"model": model}).layers
    images = np.zeros((4, 2, 2, 1), np.uint8)
    images[:, 0, 0, 0] = [0, 255, 0, 255]
    images[:, 0, 1, 0] = [100, 100, 100, 101]
    see(layer, images)
    count, mean, variance = statistics(layer)
    assert count == 4
    np.testing.assert_allclose(mean.ravel(), [0.5, 100.25 / 255, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(variance.ravel(), [0.25, 3 / 16 / 255**2, 0, 0], rtol=1e-4)
    spread = np.sqrt([0.25 + 0.01, 0.01 + 3 / 16 / 255**2, 0.01, 0.01])
    expected = (np.array([255, 101, 51, 255]) / 255 - mean.ravel()) / spread
    image = np.array([255, 101, 51, 255], np.uint8).reshape(1, 2, 2, 1)
    np.testing.assert_allclose(np.ravel(layer(image)), expected.clip(-10, 10), rtol=1e-5)
    assert not any(isinstance(layer, keras.layers.Rescaling) for layer in model.layers)


def test_calling_changes_nothing() -> None:
    """Neither acting nor learning: only what is merged does."""
    layer = made()
    see(layer, np.random.default_rng(0).normal(size=(5, 3)))
    before = statistics(layer)
    for training in (False, True):
        layer(100.0 * np.ones((50, 3)), training=training)
    for ours, theirs in zip(before, statistics(layer), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert layer.trainable_weights == []


PARTS = gym.spaces.Dict(
    {
        "far": gym.spaces.Box(-np.inf, np.inf, (2,)),
        "image": gym.spaces.Box(0, 255, (2, 2, 1), np.uint8),
        "letter": gym.spaces.Discrete(3),
        "bits": gym.spaces.MultiBinary(2),
        "number": gym.spaces.Box(-1.0, 1.0, ()),
    }
)


class PartsEnv(gym.Env[dict[str, Any], np.int64]):
    """Draws its observations; every fifth step ends an episode. Keeps those it has acted on."""

    def __init__(self) -> None:
        self.observation_space = PARTS
        self.action_space = gym.spaces.Discrete(2)
        self.acted_on: list[dict[str, Any]] = []
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Takes a step."""
        self.acted_on.append(self._last)
        self._step += 1
        return self._observe(), 1.0, self._step == 5, False, {}

    def _observe(self) -> dict[str, Any]:
        rng = self.np_random
        self._last = {
            "far": np.array([50, 3] + 2.0 * rng.normal(size=2), np.float32),
            "image": rng.integers(256, size=(2, 2, 1)).astype(np.uint8),
            "letter": np.int64(rng.integers(3)),
            "bits": rng.integers(2, size=2).astype(np.int8),
            "number": np.float32(rng.uniform(-1, 1)),
        }
        return self._last


def test_parts_of_observations() -> None:
    """Each number or image by its own statistics, over the steps that took an action."""
    agent = make_agent(PartsEnv(), (4,), keras.optimizers.SGD(), nets={"normalize": True})
    server = ParameterServer(agent)
    local = agent.clone()
    worker = Worker(0, local, server.connect(local.weights), 4, 2)
    envs = [PartsEnv(), PartsEnv()]
    runner = EnvRunner(vector(*envs), 4, seed=0, observations=local.observations)
    worker.run(runner, stop_after(6))
    assert runner.error is None
    seen = [observation for env in envs for observation in env.acted_on]
    assert len(seen) == server.global_step == 40
    layers = Normalizations({"model": agent.model}).layers
    assert [agent.observations.net_names[layer.part] for layer in layers] == [
        *["far", "image", "number"]  # sorted by Gymnasium
    ]
    for layer, scale in zip(layers, (1.0, 1 / 255, 1.0), strict=True):
        name = agent.observations.net_names[layer.part]
        values = np.array([observation[name] for observation in seen], float)
        assert_statistics(layer, values * scale, rtol=1e-4, atol=1e-4)


# Whose statistics ---------------------------------------------------------------------------------


def normalizing_agent(env: gym.Env | None = None, **options: Any) -> A3CAgent:
    """Everything is normalised."""
    return make_agent(
        env or KnownEnv(), (4,), nets={"normalize": True}, scale_rewards=True, **options
    )


@pytest.mark.parametrize(
    ("backend", "workers"), [("threads", 1), ("threads", 4), ("processes", 1), ("processes", 4)]
)
def test_every_step_is_seen_once(tmp_path: Path, backend: Any, workers: int) -> None:
    """By the globals, whoever has taken it; what evaluation sees does not count."""
    agent = normalizing_agent(gamma=0.5)
    steps: list[int] = []
    train_agent_async(
        tmp_path,
        workers,
        lambda index, test: KnownEnv(worker=100 if test else index),
        agent=agent,
        steps=600,
        backend=backend,
        envs_per_worker=2,
        t_max=3,
        eval_interval=200,
        eval_n_episodes=2,
        global_step_hooks=[lambda env, agent, step: steps.append(step)],
    )
    (observations, rewards) = agent.normalizations.layers
    assert float(observations.count) == float(rewards.count) == steps[-1] >= 600
    # The first number is the worker's, which is 100 in evaluation; the others by the step.
    mean = observations.mean.numpy()
    assert mean[0] <= workers - 1
    np.testing.assert_allclose(mean[2:7], 0.2, atol=0.02)
    np.testing.assert_array_equal(mean[7:], 0.0)
    # A reward of 1 on each of 5 steps.
    np.testing.assert_allclose(rewards.mean, np.mean([1, 1.5, 1.75, 1.875, 1.9375]), rtol=0.02)
    np.testing.assert_allclose(rewards.variance, np.var([1, 1.5, 1.75, 1.875, 1.9375]), rtol=0.1)
    (saved,) = tmp_path.glob("*_finish")
    for ours, theirs in zip(agent.weights, load_agent(saved).weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_workers_act_by_the_globals_statistics() -> None:
    """They get them with the weights, also those that others have sent in between."""
    agent = normalizing_agent(optimizer=keras.optimizers.SGD())
    server = ParameterServer(agent)
    workers = []
    for index in range(2):
        local = agent.clone()
        workers.append(Worker(index, local, server.connect(local.weights), 3, 1))
    runners = [EnvRunner(vector(KnownEnv(index)), 3, discount=0.9) for index in range(2)]
    for worker, runner in zip(workers, runners, strict=True):
        worker.begin(runner)
    for number in range(1, 4):
        for worker, runner in zip(workers, runners, strict=True):
            worker.iterate(runner)
            for ours, theirs in zip(worker.agent.weights, agent.weights, strict=True):
                np.testing.assert_array_equal(ours, theirs)
        assert float(agent.normalizations.layers[0].count) == server.global_step > 4 * number


def test_evaluation_leaves_them_alone() -> None:
    """It acts by them, and that is all."""
    agent = normalizing_agent()
    see(agent.normalizations.layers[0], np.random.default_rng(0).normal(size=(5, 11)))
    before = [weight.numpy() for weight in agent.weights]
    assert Evaluator(agent, lambda index, test: KnownEnv(), 4, envs=2).run()
    for ours, theirs in zip(before, agent.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_clones_and_copies_on_disk_have_them(tmp_path: Path) -> None:
    """The same outputs for observations and rewards."""
    agent, rng = normalizing_agent(), np.random.default_rng(0)
    see(agent.normalizations.layers[0], 5 + 2 * rng.normal(size=(9, 11)))
    see(agent.normalizations.layers[1], 3 * rng.normal(size=9))
    agent.save(tmp_path)
    rows, rewards = rng.normal(size=(4, 11)), tf.constant(rng.normal(size=(2, 3)), tf.float32)
    for other in (agent.clone(), load_agent(tmp_path)):
        for ours, theirs in zip(agent.model(rows), other.model(rows), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(
            agent.learned_rewards(rewards), other.learned_rewards(rewards)
        )
        assert other.normalizations.size == agent.normalizations.size == 23 + 3
        see(other.normalizations.layers[0], rows)  # nothing is shared with the copy
    assert float(agent.normalizations.layers[0].count) == 9


# Rewards ------------------------------------------------------------------------------------------


def discounted_returns(env: KnownEnv, gamma: float) -> list[float]:
    """G_t = r_t + gamma G_{t-1} of all steps, from 0 in each episode."""
    returns, so_far = [], 0.0
    for step in env.history:
        so_far = step.reward + gamma * so_far
        returns.append(so_far)
        if step.terminated or step.truncated:
            so_far = 0.0
    return returns


@pytest.mark.parametrize("t_max", [1, 4])
def test_spread_of_discounted_returns(t_max: int) -> None:
    """Over all steps, cut at episode ends and nowhere else; reset steps do not count."""
    agent = normalizing_agent(optimizer=keras.optimizers.SGD(), gamma=0.9)
    server = ParameterServer(agent)
    local = agent.clone()
    worker = Worker(0, local, server.connect(local.weights), t_max, 2)
    envs = [KnownEnv(0, (5.0, -1.0, 8.0), "terminated"), KnownEnv(1, (100.0,) * 6)]
    runner = EnvRunner(vector(*envs), t_max, discount=0.9)
    worker.run(runner, stop_after(24 // t_max))
    returns = np.concatenate([discounted_returns(env, 0.9) for env in envs])
    scale = agent.normalizations.layers[-1]
    assert_statistics(scale, returns, rtol=1e-4)
    rewards = tf.constant([[5.0, -7.0]])
    np.testing.assert_allclose(agent.learned_rewards(rewards), rewards / np.std(returns), rtol=1e-4)
    # What is reported is raw.
    finished = {episode.episode_return for episode in runner.take_episodes()}
    assert finished == {12.0, 600.0}


def test_loss_is_about_scaled_rewards() -> None:
    """Half as large if the spread is 2."""
    scaled, plain = normalizing_agent(), make_agent(KnownEnv(), (4,), nets={"normalize": True})
    see(scaled.normalizations.layers[1], [-2.0, 2.0])
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(4, 2, 11)).astype(np.float32)
    actions, rewards = np.ones((3, 2), np.int64), np.float32([[1, 2], [3, 4], [5, 6]])
    never, always = np.zeros((3, 2), np.float32), np.ones((3, 2), np.float32)
    losses = [
        agent.loss(rollout_of(observations, actions, paid, never, never, always), 0.0)[0]
        for agent, paid in ((scaled, rewards), (plain, rewards / 2), (plain, rewards))
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert abs(float(losses[1] - losses[2])) > 0.1


def test_rewards_are_clipped_after_scaling() -> None:
    """In the units that are learned."""
    agent = normalizing_agent(reward_clip=0.5)
    see(agent.normalizations.layers[1], [-100.0, 100.0])
    rewards = tf.constant([[20.0, 70.0, -1000.0]])
    np.testing.assert_allclose(agent.learned_rewards(rewards), [[0.2, 0.5, -0.5]], rtol=1e-5)
    assert make_agent(KnownEnv()).learned_rewards(rewards) is rewards


def test_first_rewards(tmp_path: Path) -> None:
    """Are finite, also where the environment has paid nothing so far; scores are raw."""
    agent = normalizing_agent()
    rewards = tf.constant([[0.0, 3.0, -2.0]])
    np.testing.assert_allclose(agent.learned_rewards(rewards), rewards)
    see(agent.normalizations.layers[1], np.zeros(50))
    np.testing.assert_allclose(agent.learned_rewards(rewards), [[0.0, 10.0, -10.0]])

    def make_env(index: int, test: bool) -> gym.Env:
        return KnownEnv(rewards=(0.0, 0.0, 0.0, 1000.0))

    train_agent_async(
        tmp_path, 1, make_env, agent=agent, steps=100, eval_interval=0, t_max=2, eval_n_episodes=3
    )
    header, row = (line.split("\t") for line in (tmp_path / "scores.txt").read_text().splitlines())
    values = dict(zip(header, map(float, row), strict=True))
    assert values["mean"] == 1000.0
    assert all(np.isfinite(weight).all() for weight in agent.weights)


@pytest.mark.parametrize(
    ("flags", "state_size", "moments_size"),
    [
        (["--lstm"], 2 * 2 * 4, 0),
        (["--lstm", "--shared-trunk", "--normalize-observations"], 2 * 4, 1 + 2 * 4),
        (["--normalize-rewards"], 0, 1 + 2),
    ],
)
def test_flags(tmp_path: Path, flags: list[str], state_size: int, moments_size: int) -> None:
    """Reach the agent that is trained and saved; without them there is nothing of the kind."""
    short = (
        "--workers 1 --steps 40 --t-max 2 --envs-per-worker 2 --hidden-sizes 4 --eval-episodes 1"
    )
    assert train_command([*short.split(), *flags, "--outdir", str(tmp_path / "run")]) == 0
    (saved,) = tmp_path.glob("run/*_finish")
    agent = load_agent(saved)
    assert (agent.state_size, agent.normalizations.size) == (state_size, moments_size)
    assert all(float(layer.count) >= 40 for layer in agent.normalizations.layers)


# Learning -----------------------------------------------------------------------------------------


class FarABCEnv(ABCEnv):
    """The letters in numbers that a net can hardly tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))

    def _observe(self) -> Observation:
        return np.float32(1000.0) + np.float32(0.01) * super()._observe()


@pytest.mark.parametrize(("normalize", "least", "most"), [(True, 0.95, 1.0), (False, 0.0, 0.6)])
def test_far_letters(tmp_path: Path, normalize: bool, least: float, most: float) -> None:
    """Learned with normalisation, and not without."""

    def make_env(index: int, test: bool) -> gym.Env:
        return FarABCEnv()

    steps = 12_000
    agent = make_agent(
        FarABCEnv(),
        (16,),
        keras.optimizers.RMSprop(rho=0.99, epsilon=1e-5),
        nets={"normalize": normalize},
        learning_rate=Schedule(0.01, 0.0, steps),
    )
    train_agent_async(
        tmp_path, 1, make_env, agent=agent, steps=steps, eval_interval=None, envs_per_worker=8
    )
    scores = Evaluator(agent, make_env, 200, envs=50, greedy=True).run()
    assert scores is not None
    assert least <= scores.summary()["mean"] <= most
