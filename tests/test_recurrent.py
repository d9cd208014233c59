"""Recurrent nets: where the state comes from, where it goes, and where it is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from a3c_tf import evaluation
from a3c_tf.agents import a3c
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.loading import load_agent
from a3c_tf.envs.runner import EnvRunner
from a3c_tf.evaluation import Evaluator
from a3c_tf.layers import EpisodicLSTM
from a3c_tf.parameters import ParameterServer
from a3c_tf.quiet import keras, tf
from a3c_tf.schedules import Schedule
from a3c_tf.training import train_agent_async
from a3c_tf.worker import Worker
from tests.envs import Ending, KnownEnv, RememberEnv
from tests.helpers import RecordingConnection, make_agent, stop_after, vector

HIDDEN = (5,)
Floats = npt.NDArray[np.float32]


def recurrent_agent(shared_trunk: bool = False, **options: Any) -> A3CAgent:
    """An agent for `KnownEnv` whose outputs depend a lot on what was before."""
    nets = {"lstm": True, "shared_trunk": shared_trunk}
    agent = make_agent(KnownEnv(), HIDDEN, nets=nets, **options)
    for number, weight in enumerate(agent.weights):
        weight.assign(weight + np.sin(number + np.arange(weight.shape[-1])) / 2)
    return agent


# The layer, against plain NumPy ------------------------------------------------------------------


def sigmoid(x: Any) -> Any:
    """The logistic function."""
    return 1.0 / (1.0 + np.exp(-x))


def plain_lstm(weights: Sequence[Any], episode: Any) -> Any:
    """Outputs of a LSTM (Keras's order of gates: i, f, c, o) over one episode, [L, F]."""
    kernel, recurrent, bias = weights
    hidden = cell = np.zeros(len(recurrent))
    outputs = []
    for features in episode:
        i, f, c, o = np.split(features @ kernel + hidden @ recurrent + bias, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        hidden = sigmoid(o) * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs)


def plain_outputs(agent: A3CAgent, episode: Any) -> tuple[Any, Any]:
    """Logits, [L, actions], and values, [L], of an episode from its first observation on."""
    layers = {layer.name: layer.get_weights() for layer in agent.model.layers}
    heads = []
    for head in ("policy", "value"):
        shared = "shared_0" in layers
        hidden = layers["shared_0" if shared else f"{head}_0"]
        lstm = layers["lstm_0" if shared or head == "policy" else "lstm_1"]
        output = layers[f"{head}_output"]
        features = plain_lstm(lstm, np.tanh(episode @ hidden[0] + hidden[1]))
        heads.append(features @ output[0] + output[1])
    return heads[0], heads[1][:, 0]


def test_layer_forgets_at_a_start() -> None:
    """T x K rows with starts anywhere are what the episodes give one by one; two layers share."""
    rng = np.random.default_rng(0)
    steps, envs, size, units = 7, 3, 2, 4
    features = rng.normal(size=(steps, envs, size)).astype(np.float32)
    starts = np.zeros((steps, envs), np.float32)
    starts[0] = starts[3, 0] = starts[4, 0] = starts[6, 2] = 1.0
    before = rng.normal(size=(envs, 4 * units)).astype(np.float32)  # to be forgotten
    for index in (0, 1):
        layer = EpisodicLSTM(units, index)
        outputs, after = layer(
            [features.reshape(-1, size), tf.constant(before), starts.reshape(-1)]
        )
        assert after.shape == (envs, 2 * units)
        outputs = np.reshape(outputs, (steps, envs, units))
        for env in range(envs):
            ends = [*np.flatnonzero(starts[:, env]), steps]
            for first, end in pairwise(ends):
                expected = plain_lstm(layer.get_weights(), features[first:end, env])
                np.testing.assert_allclose(outputs[first:end, env], expected, atol=1e-6)


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_layer_goes_on_from_a_state(cut: int) -> None:
    """In two calls as in one; each of two layers has its own part of the state."""
    rng = np.random.default_rng(1)
    steps, envs, size, units = 7, 2, 3, 4
    rows = rng.normal(size=(steps * envs, size)).astype(np.float32)
    starts = np.zeros(steps * envs, np.float32)
    state = tf.constant(rng.normal(size=(envs, 4 * units)), tf.float32)
    layers = [EpisodicLSTM(units, index, seed=index) for index in (0, 1)]
    whole = [layer([rows, state, starts]) for layer in layers]
    at = cut * envs
    first = [layer([rows[:at], state, starts[:at]]) for layer in layers]
    between = tf.concat([after for _, after in first], axis=-1)
    second = [layer([rows[at:], between, starts[at:]]) for layer in layers]
    for one, other, all_of_it in zip(first, second, whole, strict=True):
        np.testing.assert_allclose(tf.concat([one[0], other[0]], 0), all_of_it[0], atol=1e-6)
        np.testing.assert_allclose(other[1], all_of_it[1], atol=1e-6)


def test_initial_weights() -> None:
    """Kernel and recurrent kernel orthogonal and not the same; a forget gate that is open."""
    lstm = make_agent(KnownEnv(), (4,), nets={"lstm": True}).model.get_layer("lstm_0")
    kernel, recurrent, bias = lstm.get_weights()
    for matrix in (kernel, recurrent):
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(4), atol=1e-5)
    assert np.abs(kernel - recurrent).max() > 0.1
    np.testing.assert_array_equal(bias, [0] * 4 + [1] * 4 + [0] * 8)


# Acting and training --------------------------------------------------------------------------


class Outputs:
    """What the nets put out while a worker acts, and then while it learns, rollout by rollout.

    Attributes:
        acting: logits, [K, actions] for each step.
        learning: logits, [T, K, actions] for each rollout.
        values: [T + 1, K] for each rollout.
    """

    def __init__(self, agent: A3CAgent, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acting: list[Floats] = []
        self.learning: list[Floats] = []
        self.values: list[Floats] = []
        original = agent.actions.distribution

        def distribution(outputs: Any, mask: Any = None) -> Any:
            kept = self.acting if outputs.shape.rank == 2 else self.learning
            tf.numpy_function(kept.append, [outputs], [])
            return original(outputs, mask)

        monkeypatch.setattr(agent.actions, "distribution", distribution)
        returns = a3c.advantages_and_returns

        def returns_of(rewards: Any, values: Any, *others: Any) -> Any:
            tf.numpy_function(self.values.append, [values], [])
            return returns(rewards, values, *others)

        monkeypatch.setattr(a3c, "advantages_and_returns", returns_of)


class Watched(EnvRunner):
    """Keeps all observations, [K, ...] each."""

    def begin_rollout(self) -> Any:
        """The first one."""
        observations = super().begin_rollout()
        self.seen: list[Floats] = getattr(self, "seen", None) or [observations[0]]
        return observations

    def step(self, actions: Any) -> Any:
        """All others."""
        observations = super().step(actions)
        self.seen.append(observations[0])
        return observations


ROLLOUTS = 7
# Of the episodes of each environment. One of L steps takes L + 1, with its reset: so episodes
# begin, and end, everywhere in a rollout.
LENGTHS = (3, 1, 6)


@pytest.mark.parametrize(
    ("t_max", "envs", "shared_trunk", "ending"),
    [
        (5, 3, False, "truncated"),
        (5, 3, True, "terminated"),
        (1, 3, False, "truncated"),
        (4, 1, True, "truncated"),
    ],
)
def test_state_goes_with_the_episode(
    t_max: int, envs: int, shared_trunk: bool, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In acting, in learning and for the bootstrap: as if each episode were run by itself.

    So the state is zero at an episode's start, wherever in a rollout that is; it goes on from
    one rollout to the next; the final observation's value, with which a truncated episode
    bootstraps, belongs to the old episode; and the bootstrap does not advance the state.
    """
    agent = recurrent_agent(shared_trunk)
    outputs = Outputs(agent, monkeypatch)
    worker = Worker(0, agent, RecordingConnection(), t_max, envs)
    known = [KnownEnv(k, (1.0,) * LENGTHS[k], ending) for k in range(envs)]
    runner = Watched(vector(*known), t_max)
    worker.run(runner, stop_after(ROLLOUTS))
    seen = np.array(runner.seen)
    starts_at: set[int] = set()
    for k in range(envs):
        numbers = seen[:, k, 1]
        starts_at |= {int(at) % t_max for at in 1 + np.flatnonzero(np.diff(numbers))}
        runs = [plain_outputs(agent, seen[numbers == n, k]) for n in np.unique(numbers)]
        logits, values = (np.concatenate(part) for part in zip(*runs, strict=True))
        acting = np.array(outputs.acting)[:, k]
        np.testing.assert_allclose(acting, logits[:-1], atol=1e-5)
        for number in range(ROLLOUTS):
            at, end = number * t_max, (number + 1) * t_max
            np.testing.assert_allclose(outputs.learning[number][:, k], acting[at:end], atol=1e-5)
            np.testing.assert_allclose(
                outputs.values[number][:, k], values[at : end + 1], atol=1e-5
            )
    if envs == 3:
        assert starts_at == set(range(t_max))


def test_learning_repeats_acting_while_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state from the weights of earlier rollouts is taken as it is; each rollout is its own."""
    server = ParameterServer(recurrent_agent(optimizer=keras.optimizers.SGD(), max_gradient_norm=0))
    server.agent.change(learning_rate=0.1)
    agent = server.agent.clone()
    outputs = Outputs(agent, monkeypatch)
    worker = Worker(0, agent, server.connect(agent.weights), 4, 2)
    before = server.agent.model.get_weights()
    envs = vector(KnownEnv(0, (1.0, 2.0, 3.0)), KnownEnv(1, (1.0,) * 6))
    worker.run(EnvRunner(envs, 4), stop_after(ROLLOUTS))
    assert all(
        (a != b).any() for a, b in zip(before, server.agent.model.get_weights(), strict=True)
    )
    learned = np.concatenate(outputs.learning)
    np.testing.assert_allclose(np.array(outputs.acting), learned, atol=1e-5)


def test_gradient_flows_through_time() -> None:
    """Back to the episode's start and no further."""
    agent = recurrent_agent()
    rows, state = tf.Variable(tf.ones([4, 11])), tf.Variable(tf.ones([1, 20]))
    with tf.GradientTape() as tape:
        logits, _, _ = agent.model([rows, state, tf.constant([0.0, 0.0, 1.0, 0.0])])
        last = tf.reduce_sum(tf.square(logits[-1]))
    gradient = tape.gradient(last, rows).numpy()
    assert gradient[2:].any(axis=1).all()
    assert not gradient[:2].any()


# Acting alone, and evaluation ------------------------------------------------------------------

ACTIONS = 12


def counting_agent() -> A3CAgent:
    """Its action is the number of steps since the episode's start, by a state that counts them."""
    space = KnownEnv().observation_space
    observations = keras.Input(space.shape)
    state, starts = keras.Input((1,)), keras.Input(())
    count = state * (1.0 - keras.ops.expand_dims(starts, -1)) + 1.0
    logits = -keras.ops.square(count - np.arange(1.0, ACTIONS + 1.0, dtype=np.float32))
    values = keras.layers.Reshape(())(keras.layers.Dense(1)(observations))
    model = keras.Model([observations, state, starts], [logits, values, count])
    return A3CAgent(model, space, gym.spaces.Discrete(ACTIONS))


def many_actions(length: int) -> KnownEnv:
    """Episodes of a length, in which all actions of a counting agent are taken."""
    env = KnownEnv(rewards=(1.0,) * length)
    env.action_space = gym.spaces.Discrete(ACTIONS)
    return env


def actions_of(env: KnownEnv) -> list[int]:
    """All that it was given."""
    return [step.action for step in env.history]


def evaluate(agent: A3CAgent, episodes: int, *envs: KnownEnv, runs: int = 1) -> None:
    """Evaluates greedily on some environments."""
    remaining = list(envs)
    evaluator = Evaluator(
        agent, lambda index, test: remaining.pop(0), episodes, greedy=True, envs=len(envs)
    )
    for number in range(runs):
        assert evaluator.run(number=number)


def test_evaluation_starts_from_nothing() -> None:
    """Every episode of every environment, the first of a second evaluation too."""
    envs = [many_actions(length) for length in (2, 5, 3)]
    evaluate(counting_agent(), 9, *envs, runs=2)
    assert actions_of(envs[0])[:6] == [0, 1, 0, 1, 0, 1]
    for env, length in zip(envs, (2, 5, 3), strict=True):
        episodes = np.array([step.observation[1] for step in env.history])
        for episode in np.unique(episodes):
            taken = [env.history[i].action for i in np.flatnonzero(episodes == episode)]
            assert taken == list(range(len(taken)))
            assert len(taken) <= length
    assert actions_of(envs[1])[:5] == [0, 1, 2, 3, 4]


def test_evaluation_after_an_episode_that_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on in the environment is another episode: also for the state."""
    monkeypatch.setattr(evaluation, "MAX_EPISODE_STEPS", 3)
    env = many_actions(8)
    evaluate(counting_agent(), 4, env)
    assert actions_of(env) == [0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 2]


def test_evaluation_leaves_other_states_alone() -> None:
    """That of `act`, and that of a worker with the same nets, which learns the same."""
    observation = np.zeros(KnownEnv().observation_space.shape, np.float32)
    agent = counting_agent()
    assert [agent.act(observation, True) for _ in range(2)] == [0, 1]
    evaluate(agent, 2, many_actions(4))
    assert agent.act(observation, True) == 2

    pushes = []
    for evaluated in (False, True):
        agent = recurrent_agent()
        connection = RecordingConnection()
        worker = Worker(0, agent, connection, 4, 1)
        runner = EnvRunner(vector(KnownEnv(rewards=(1.0,) * 7)), 4)
        worker.begin(runner)
        for _ in range(3):
            worker.iterate(runner)
            if evaluated:
                evaluate(agent, 2, KnownEnv())
        pushes.append([push.gradient for push in connection.pushes])
    np.testing.assert_array_equal(pushes[0], pushes[1])
    assert pushes[0][0].any()


def test_acting_remembers_until_a_start() -> None:
    """For each agent by itself; other environments than before are at their start."""
    one, other = counting_agent(), counting_agent()
    observation = np.zeros(KnownEnv().observation_space.shape, np.float32)
    batch = np.stack([observation] * 3)
    assert [one.act(observation, greedy=True) for _ in range(3)] == [0, 1, 2]
    assert other.act(observation, greedy=True) == 0
    assert one.act(observation, greedy=True, start=False) == 3
    assert one.act(observation, greedy=True, start=True) == 0
    assert one.act(observation, greedy=True) == 1
    assert one.act_batch(batch, greedy=True).tolist() == [0, 0, 0]
    assert one.act_batch(batch, greedy=True).tolist() == [1, 1, 1]
    starts = [False, True, False]
    assert one.act_batch(batch, greedy=True, starts=starts).tolist() == [2, 0, 2]
    assert one.act_batch(batch, greedy=True).tolist() == [3, 1, 3]
    assert one.act_batch(batch[:2], greedy=True).tolist() == [0, 0]
    assert one.clone().act(observation, greedy=True) == 0


def test_acting_is_the_nets() -> None:
    """The most likely action after all that was seen in the episode."""
    agent = recurrent_agent()
    episode = np.random.default_rng(0).normal(size=(30, 11)).astype(np.float32)
    head = agent.model.get_layer("policy_output")
    head.bias.assign(head.bias - np.median(plain_outputs(agent, episode)[0], axis=0))
    logits, _ = plain_outputs(agent, episode)
    taken = [agent.act(observation, greedy=True) for observation in episode]
    np.testing.assert_array_equal(taken, np.argmax(logits, axis=-1))
    assert len(set(taken)) == 2


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_copies(tmp_path: Path, shared_trunk: bool) -> None:
    """A clone, and an agent from the disk, go on alike from any state; their own is none."""
    agent, rng = recurrent_agent(shared_trunk), np.random.default_rng(0)
    rows = rng.normal(size=(6, 11)).astype(np.float32)
    agent.act(rows[0])
    agent.save(tmp_path)
    assert agent.state_size == (10 if shared_trunk else 20)
    state = tf.constant(rng.normal(size=(2, agent.state_size)), tf.float32)
    starts = tf.constant([0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    batch = [tf.constant(rows), state, starts]
    for copy in (agent.clone(), load_agent(tmp_path)):
        outputs = (each.model(batch) for each in (agent, copy))
        for ours, theirs in zip(*outputs, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(
            [agent.act(row, True, start=i == 0) for i, row in enumerate(rows)],
            [copy.act(row, True) for row in rows],
        )


# Learning to remember ----------------------------------------------------------------------------


@pytest.mark.parametrize(("lstm", "least", "most"), [(True, 0.95, 1.0), (False, 0.4, 0.6)])
def test_cue_is_remembered(tmp_path: Path, lstm: bool, least: float, most: float) -> None:
    """Solved with a LSTM; without one, no better than chance."""

    def make_env(index: int, test: bool) -> gym.Env:
        return RememberEnv()

    steps = 12_000
    agent = make_agent(
        RememberEnv(),
        (16,),
        keras.optimizers.Adam(),
        nets={"lstm": lstm, "shared_trunk": True},
        learning_rate=Schedule(0.02, 0.0, steps),
    )
    train_agent_async(
        tmp_path,
        1,
        make_env,
        agent=agent,
        steps=steps,
        eval_interval=None,
        envs_per_worker=16,
        t_max=6,
    )
    scores = Evaluator(agent, make_env, 400, seed=1, envs=100, greedy=True).run()
    assert scores is not None
    assert least <= scores.summary()["mean"] <= most
