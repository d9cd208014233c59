"""N-step Q-learning: what it learns from, how it explores, its target net, and whole runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from a3c_tf.agents.base import Agent
from a3c_tf.agents.learning import Rollout
from a3c_tf.agents.loading import load_agent
from a3c_tf.agents.n_step_q import NStepQAgent, NStepQHyperparameters
from a3c_tf.backends.child import Answer, Mailbox, Message, RemoteConnection
from a3c_tf.backends.processes import FlatServer
from a3c_tf.config import Backend
from a3c_tf.envs.factory import RegisteredEnv, spaces_of
from a3c_tf.envs.runner import EnvRunner
from a3c_tf.evaluation import Evaluator
from a3c_tf.networks import build_action_value
from a3c_tf.parameters import Connection, ParameterServer
from a3c_tf.quiet import keras, tf
from a3c_tf.schedules import Schedule
from a3c_tf.training import train_agent_async
from a3c_tf.worker import Worker
from tests.envs import MAX_LENGTH, ABCEnv, Ending, KnownEnv, Transition
from tests.helpers import RecordingConnection, rollout_of, stop_after, vector

BACKENDS: tuple[Backend, ...] = ("threads", "processes")
ACTIONS = 3
STATES = 10
T_MAX = 5  # of workers

Table = npt.NDArray[np.float32]  # of action values, [states, actions]

rng = np.random.default_rng(0)
ONLINE = rng.normal(size=(STATES, ACTIONS)).astype(np.float32)
TARGET = rng.normal(size=(STATES, ACTIONS)).astype(np.float32)


def make_agent(
    env: gym.Env,
    hidden_sizes: Sequence[int] = (),
    optimizer: keras.optimizers.Optimizer | None = None,
    seed: int = 0,
    **hyperparameters: Any,
) -> NStepQAgent:
    """An agent for an environment: a linear net, unless hidden layers are asked for."""
    spaces = env.observation_space, env.action_space
    model = build_action_value(*spaces, hidden_sizes=hidden_sizes, seed=seed)
    settings = NStepQHyperparameters(**hyperparameters)
    return NStepQAgent(model, *spaces, optimizer, settings, seed)


def table_agent(
    online: Table = ONLINE, target: Table = TARGET, start: int = 0, **hyperparameters: Any
) -> NStepQAgent:
    """An agent whose nets are tables: states are one-hot vectors, and the nets are linear."""
    states, actions = online.shape
    env = gym.Env()
    env.observation_space = gym.spaces.Box(0.0, 1.0, (states,))
    env.action_space = gym.spaces.Discrete(actions, start=start)
    agent = make_agent(env, **hyperparameters)
    agent.model.set_weights([online, np.zeros(actions)])
    agent.target.set_weights([target, np.zeros(actions)])
    return agent


def letters_agent(seed: int = 0, **hyperparameters: Any) -> NStepQAgent:
    """An agent for three letters with one hidden layer, and a target net that is another net."""
    agent = make_agent(ABCEnv(), (4,), seed=seed, **hyperparameters)
    for net, sign in ((agent.model, 1.0), (agent.target, -1.0)):
        for number, weight in enumerate(net.weights):
            change = np.sin(seed + number + np.arange(weight.shape[-1]))
            weight.assign(weight + sign * change)
    return agent


@pytest.fixture(scope="module")
def make_worker() -> Callable[..., Worker]:
    """Makes workers for two `KnownEnv`s; those of one kind share one trace."""
    traced: dict[int, Worker] = {}

    def make(exploration: float, start: int = 0) -> Worker:
        agent = make_agent(KnownEnv(start=start), (4,), gamma=0.8, max_gradient_norm=0.0)
        connection = RecordingConnection(exploration)
        worker = Worker(0, agent, connection, T_MAX, 2, like=traced.get(start))
        traced.setdefault(start, worker)
        return worker

    return make


def one_hot(states: Any) -> Table:
    """The observations that stand for some states of a `table_agent`."""
    return np.eye(STATES, dtype=np.float32)[np.asarray(states)]


def same(ours: Any, theirs: Any) -> bool:
    """Whether two nets have the same weights."""
    pairs = zip(ours.get_weights(), theirs.get_weights(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


# What it learns from ------------------------------------------------------------------------


def straight_on(
    rewards: Sequence[float],
    terminated: int | None = None,
    truncated: int | None = None,
    last: int = STATES - 1,
) -> Rollout:
    """One environment that goes from state 0 to 1 to 2 ..., and action 1 in each.

    Args:
        rewards: one for each step.
        terminated: the step that ends an episode by itself; the next one is a reset step.
        truncated: the step after which one is cut off; the next one is a reset step.
        last: the state after the last step.
    """
    steps = len(rewards)
    signals = np.zeros((2, steps, 1), np.float32)
    valid = np.ones((steps, 1), np.float32)
    for signal, end in zip(signals, (terminated, truncated), strict=True):
        if end is not None:
            signal[end] = 1.0
            valid[end + 1 : end + 2] = 0.0
    observations = one_hot([*range(steps), last])[:, None]
    actions = np.ones((steps, 1), np.int64)
    rewards = np.array(rewards, np.float32)[:, None]
    return rollout_of(observations, actions, rewards, *signals, valid)


def gradient(agent: NStepQAgent, rollout: Rollout) -> list[Table]:
    """Of the loss, by the trainable variables."""
    with tf.GradientTape() as tape:
        loss, _ = agent.loss(rollout, 0.0)
    return [np.array(g) for g in tape.gradient(loss, agent.trainable_variables)]


def targets(agent: NStepQAgent, rollout: Rollout) -> list[float]:
    """What Q(s_t, 1) of the valid steps of a `straight_on` is drawn to.

    The loss is a mean of squares, so that is where its gradient by the table's entry would be
    zero.
    """
    table = agent.model.get_weights()[0]
    steps = np.flatnonzero(rollout.valid)
    by_table = gradient(agent, rollout)[0]
    return [float(table[t, 1] - by_table[t, 1] * len(steps) / 2.0) for t in steps]


def maxima(**values: float) -> Table:
    """A target table whose largest values are given: s9=8.0 for state 9, all others are -1."""
    table = np.full((STATES, ACTIONS), -1.0, np.float32)
    for state, value in values.items():
        table[int(state[1:]), 2] = value
    return table


def test_targets_are_n_step_returns() -> None:
    """The rewards to the end of the rollout, then the largest value of the target net."""
    agent = table_agent(target=maxima(s9=8.0, s1=100.0, s2=100.0), gamma=0.5)
    returns = targets(agent, straight_on([1.0, 2.0, 4.0]))
    assert returns == pytest.approx([1 + 2 / 2 + 4 / 4 + 8 / 8, 2 + 4 / 2 + 8 / 4, 4 + 8 / 2])


def test_targets_do_not_know_the_online_net() -> None:
    """Neither its value of the last state, nor which action it holds to be the best."""
    online = ONLINE.copy()
    online[9] = 1000.0, 2000.0, 500.0
    agent = table_agent(online, maxima(s9=8.0), gamma=0.5)
    assert targets(agent, straight_on([1.0])) == pytest.approx([1 + 8 / 2])


def test_targets_do_not_know_the_values_on_the_way() -> None:
    """Only the last state is bootstrapped from."""
    steps = straight_on([1.0, 2.0, 4.0])
    agents = table_agent(target=maxima(s9=8.0)), table_agent(target=maxima(s9=8.0, s2=9.0, s1=9.0))
    assert targets(agents[0], steps) == pytest.approx(targets(agents[1], steps))


def masked_agent(mask: Sequence[int]) -> tuple[NStepQAgent, Any]:
    """An agent that sees nothing but constant numbers and a mask; and such an observation."""
    space = gym.spaces.Dict(seen=gym.spaces.Box(0, 1, (2,)), action_mask=gym.spaces.MultiBinary(3))
    actions = gym.spaces.Discrete(3, start=5)
    agent = NStepQAgent(build_action_value(space, actions, ()), space, actions)
    agent.model.set_weights([np.zeros((2, 3)), np.array([1.0, 4.0, 2.0])])
    agent.target.set_weights([np.zeros((2, 3)), np.array([8.0, 16.0, 4.0])])
    return agent, {"seen": np.zeros(2, np.float32), "action_mask": np.array(mask, np.int8)}


@pytest.mark.parametrize(("mask", "best"), [([1, 1, 1], 16.0), ([1, 0, 1], 8.0), ([0, 0, 1], 4.0)])
def test_targets_know_the_mask(mask: list[int], best: float) -> None:
    """Only the values of allowed actions are bootstrapped from."""
    agent, observation = masked_agent(mask)
    rollout = rollout_of(
        np.zeros((2, 1, 2), np.float32),
        np.ones((1, 1), np.int64),
        *np.zeros((3, 1, 1), np.float32),
        np.ones((1, 1), np.float32),
    )
    masks = tf.constant([[[1.0, 1.0, 1.0]], [observation["action_mask"].astype(np.float32)]])
    rollout = rollout._replace(observations=[*rollout.observations, masks])
    loss, _ = agent.loss(rollout, 0.0)
    assert float(loss) == pytest.approx((0.99 * best - 4.0) ** 2, abs=1e-4)


@pytest.mark.parametrize(
    ("mask", "greedy", "others"),
    [([1, 1, 1], 6, {5, 7}), ([1, 0, 1], 7, {5}), ([1, 0, 0], 5, set())],
)
def test_forbidden_actions_are_not_taken(mask: list[int], greedy: int, others: set[int]) -> None:
    """Neither as the best one, nor in exploring."""
    agent, observation = masked_agent(mask)
    assert agent.act(observation, greedy=True) == greedy
    arrays = [tf.constant(array) for array in agent.observations.single(observation)]
    distribution, _ = agent.distribution(arrays, tf.zeros([1, 0]), tf.zeros([1]), 0.5)
    drawn = {
        int(distribution.sample(noise)[0]) + 5 for noise in agent.actions.noise([99, 1], [1, 2])
    }
    assert drawn == {greedy, *others}


# In state 2 the episode is over; 3 is where the next one begins.
ENDS = maxima(s2=6.0, s3=50.0, s9=8.0)


def test_termination() -> None:
    """No value of what comes after it, and no reward of the next episode."""
    agent = table_agent(target=ENDS, gamma=0.5)
    returns = targets(agent, straight_on([1.0, 2.0, 0.0, 4.0], terminated=1))
    assert returns == pytest.approx([1 + 2 / 2, 2, 4 + 8 / 2])


def test_truncation() -> None:
    """The value of the final observation, and no reward of the next episode."""
    agent = table_agent(target=ENDS, gamma=0.5)
    returns = targets(agent, straight_on([1.0, 2.0, 0.0, 4.0], truncated=1))
    assert returns == pytest.approx([1 + 2 / 2 + 6 / 4, 2 + 6 / 2, 4 + 8 / 2])


def test_termination_on_the_last_step() -> None:
    """As anywhere else."""
    agent = table_agent(target=ENDS, gamma=0.5)
    assert targets(agent, straight_on([1.0, 2.0], terminated=1)) == pytest.approx([1 + 2 / 2, 2])


def test_truncation_on_the_last_step() -> None:
    """As anywhere else."""
    agent = table_agent(target=ENDS, gamma=0.5)
    returns = targets(agent, straight_on([1.0, 2.0], truncated=1))
    assert returns == pytest.approx([1 + 2 / 2 + 8 / 4, 2 + 8 / 2])


def test_reset_steps_do_not_count() -> None:
    """Not in the gradient, and not in the mean."""
    agent = table_agent(np.zeros((STATES, ACTIONS), np.float32), maxima(s9=0.0), gamma=1.0)
    steps = straight_on([1.0, 2.0, 100.0, 4.0], terminated=1)
    assert not gradient(agent, steps)[0][2].any()
    assert float(agent.loss(steps, 0.0)[0]) == pytest.approx((3**2 + 2**2 + 4**2) / 3)


def test_only_the_action_taken_learns() -> None:
    """The other actions of the state, and the states that were not acted in, stay."""
    by_table, _ = gradient(table_agent(), straight_on([1.0, 2.0]))
    assert set(zip(*map(list, np.nonzero(by_table)), strict=True)) == {(0, 1), (1, 1)}


def test_rollout_without_a_valid_step() -> None:
    """A reset step alone has no loss, not 0 / 0."""
    steps = straight_on([1.0])._replace(valid=tf.zeros((1, 1)))
    agent = table_agent()
    assert float(agent.loss(steps, 0.0)[0]) == 0.0
    assert not gradient(agent, steps)[0].any()


def test_statistics() -> None:
    """The loss, the mean of the largest values of the valid steps, and their fit."""
    agent = table_agent()
    steps = straight_on([1.0, 2.0, 0.0, 4.0], terminated=1)
    total, statistics = agent.loss(steps, 0.0)
    named = dict(zip(agent.statistics, map(float, statistics), strict=True))
    assert named["loss/total"] == float(total)
    assert named["train/action_value"] == pytest.approx(ONLINE[[0, 1, 3]].max(axis=1).mean())
    returns = np.array(targets(agent, steps))
    error = returns - ONLINE[[0, 1, 3], 1]
    expected = 1 - error.var() / returns.var()
    assert named["train/explained_variance"] == pytest.approx(expected, rel=1e-4)


def test_target_net_is_not_trained() -> None:
    """Its variables are none of the trainable ones, in a clone neither."""
    for agent in (letters_agent(), letters_agent().clone()):
        trained = {id(variable) for variable in agent.trainable_variables}
        assert trained == {id(variable) for variable in agent.model.trainable_variables}
        assert not trained & {id(variable) for variable in agent.target.variables}


def test_no_gradient_reaches_the_target_net() -> None:
    """Even where somebody asks for it."""
    agent = table_agent()
    theirs = [variable.value for variable in agent.target.weights]
    with tf.GradientTape() as tape:
        tape.watch(theirs)
        loss, _ = agent.loss(straight_on([1.0, 2.0]), 0.0)
    assert tape.gradient(loss, theirs) == [None, None]


@pytest.mark.parametrize("ending", ["terminated", "truncated", "both"])
def test_worker_pushes_the_gradient(make_worker: Callable[..., Worker], ending: Ending) -> None:
    """That of the definition, from environments whose episodes end within the rollout."""
    worker = make_worker(exploration=1.0)
    agent = worker.agent
    agent.target.set_weights([weight + 0.25 for weight in agent.model.get_weights()])
    envs = [KnownEnv(0, (1.0, -2.0, 3.0), ending), KnownEnv(1, (2.0, 5.0, 1.0, 1.0), ending)]
    worker.run(EnvRunner(vector(*envs), T_MAX), stop_after(1))
    history = [env.history for env in envs]
    assert list(map(len, history)) == [4, 4]  # and a reset step in each

    observations = np.array([step.observation for steps in history for step in steps])
    actions = [step.action for steps in history for step in steps]
    returns = [
        by_definition(steps[t:], agent.target, 0.8) for steps in history for t in range(len(steps))
    ]
    with tf.GradientTape() as tape:
        taken = tf.reduce_sum(agent.model(observations) * tf.one_hot(actions, 2), axis=1)
        loss = tf.reduce_mean((np.array(returns, np.float32) - taken) ** 2)
    expected = tape.gradient(loss, agent.model.trainable_variables)
    flat = np.concatenate([np.ravel(part) for part in expected])
    np.testing.assert_allclose(worker.connection.pushes[0].gradient, flat, rtol=1e-4, atol=1e-5)


def by_definition(steps: Sequence[Transition], target: keras.Model, gamma: float) -> float:
    """The n-step return of some steps in a row, counted forwards."""
    result, discount = 0.0, 1.0
    for step in steps:
        result += discount * step.reward
        discount *= gamma
        if step.terminated:
            return result
        if step.truncated:
            break
    return result + discount * float(np.max(target(step.next_observation[None])))


# Exploration --------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_probabilities(epsilon: float) -> None:
    """Every action has at least epsilon / n; the one with the largest value has the rest."""
    agent = table_agent()
    nothing = agent.first_state(STATES), tf.zeros([STATES])
    drawn_from, _ = agent.distribution([one_hot(range(STATES))], *nothing, tf.constant(epsilon))
    expected = np.full((STATES, ACTIONS), epsilon / ACTIONS)
    expected[range(STATES), ONLINE.argmax(axis=1)] = 1.0 - epsilon + epsilon / ACTIONS
    np.testing.assert_allclose(np.exp(drawn_from.log_probabilities), expected, atol=1e-6)
    np.testing.assert_array_equal(
        drawn_from.mode() if epsilon < 1.0 else ONLINE.argmax(axis=1), ONLINE.argmax(axis=1)
    )


def drawn_by(worker: Worker, start: int = 0, rollouts: int = 50) -> npt.NDArray[Any]:
    """The actions that two environments are given; the first one has the largest value."""
    envs = [KnownEnv(k, (1.0,) * MAX_LENGTH, start=start) for k in range(2)]
    worker.agent.model.get_layer("action_values").bias.assign([200.0, 0.0])
    worker.run(EnvRunner(vector(*envs), T_MAX), stop_after(rollouts))
    return np.array([step.action for env in envs for step in env.history])


def test_worker_without_exploration_is_greedy(make_worker: Callable[..., Worker]) -> None:
    """No other action is ever drawn."""
    assert set(drawn_by(make_worker(0.0))) == {0}


def test_worker_that_only_explores_draws_evenly(make_worker: Callable[..., Worker]) -> None:
    """As often one action as the other, whatever their values."""
    assert 0.4 < np.mean(drawn_by(make_worker(1.0)) == 1) < 0.6


def test_worker_explores_as_much_as_it_is_told(make_worker: Callable[..., Worker]) -> None:
    """Half of epsilon goes to the worse one of two actions."""
    assert 0.1 < np.mean(drawn_by(make_worker(0.4)) == 1) < 0.3


def test_actions_of_workers_are_counted_from_the_start(
    make_worker: Callable[..., Worker],
) -> None:
    """Of the space; in the loss they are counted from 0."""
    assert set(drawn_by(make_worker(0.0, start=5), start=5, rollouts=2)) == {5}
    assert set(drawn_by(make_worker(1.0, start=5), start=5, rollouts=10)) == {5, 6}


def test_actions_are_counted_from_the_start() -> None:
    """Of the space, by `act`."""
    agent = table_agent(start=5)
    expected = ONLINE.argmax(axis=1) + 5
    np.testing.assert_array_equal(agent.act_batch(one_hot(range(STATES))), expected)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, (1.0, 1.0, 1.0, 1.0)),
        (25, (0.775, 0.7525, 0.875, 0.775)),
        (50, (0.55, 0.505, 0.75, 0.55)),
        (100, (0.1, 0.01, 0.5, 0.1)),
        (101, (0.1, 0.01, 0.5, 0.1)),
        (10**9, (0.1, 0.01, 0.5, 0.1)),
    ],
)
def test_annealing(step: int, expected: tuple[float, ...]) -> None:
    """In a straight line from 1 to the worker's own end, and not beyond; the ends go round."""
    agent = letters_agent(annealing=Schedule(1.0, 0.0, 100), final_epsilons=(0.1, 0.01, 0.5))
    assert [agent.exploration(step, k) for k in range(4)] == pytest.approx(expected)


class ParentsPipe:
    """What a child holds of the pipe to its parent, which answers at once, in this process."""

    def __init__(self, server: ParameterServer, mailbox: Mailbox, worker: int) -> None:
        self._flat = FlatServer(server)
        self._mailbox = mailbox
        self._worker = worker

    def send(self, message: Message) -> None:
        """Lets the parent do what is asked for."""
        self._answer = self._flat.answer(self._mailbox, message, self._worker)

    def recv(self) -> Answer:
        """What the parent has answered."""
        return self._answer


def connect(
    backend: Backend, server: ParameterServer, local: NStepQAgent, worker: int = 0
) -> Connection:
    """The way of a worker to the global weights, as a thread or as in a process of its own."""
    if backend == "threads":
        return server.connect(local.weights, worker)
    sizes = [
        sum(int(np.prod(variable.shape)) for variable in variables)
        for variables in (local.weights, local.trainable_variables)
    ]
    memory: Any = SimpleNamespace(buf=bytearray(Mailbox.size(*sizes)))
    mailbox = Mailbox(memory, *sizes)
    pipe: Any = ParentsPipe(server, mailbox, worker)
    return RemoteConnection(pipe, mailbox, local.weights)


@pytest.mark.parametrize("backend", BACKENDS)
def test_workers_get_their_own_epsilon(backend: Backend) -> None:
    """It comes with the weights, for the global step at which they were read."""
    agent = letters_agent(annealing=Schedule(1.0, 0.0, 100), final_epsilons=(0.0, 0.5))
    server = ParameterServer(agent)
    connections = [connect(backend, server, agent.clone(), worker) for worker in range(2)]
    server.count(50, 0)
    for connection in connections:
        connection.pull()
    assert [connection.exploration for connection in connections] == pytest.approx([0.5, 0.75])


def test_evaluation_does_not_explore() -> None:
    """However far annealing has come, drawn actions are the best ones."""
    agent = table_agent(annealing=Schedule.constant(1.0))
    states = np.tile(np.arange(STATES), 50)
    for greedy in (False, True):
        actions = agent.act_batch(one_hot(states), greedy=greedy)
        np.testing.assert_array_equal(actions, ONLINE.argmax(axis=1)[states])


def test_acts_by_the_online_net() -> None:
    """What the target net holds to be the best does not matter."""
    agent = table_agent(target=-ONLINE)
    actions = agent.act_batch(one_hot(range(STATES)))
    np.testing.assert_array_equal(actions, ONLINE.argmax(axis=1))


# The target net -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "copied"),
    [
        (0, 0, False),
        (0, 9, False),
        (0, 10, True),
        (9, 10, True),
        (9, 11, True),
        (10, 10, False),
        (10, 11, False),
        (10, 19, False),
        (11, 20, True),
        (3, 47, True),
        (1, 9, False),
    ],
)
def test_target_is_copied_at_multiples(before: int, after: int, copied: bool) -> None:
    """When one was reached or passed, or several were; on no other step."""
    agent = letters_agent(target_interval=10)
    online, target = agent.model.get_weights(), agent.target.get_weights()
    agent.after_steps(before, after)
    for ours, expected in zip(
        agent.target.get_weights(), online if copied else target, strict=True
    ):
        np.testing.assert_array_equal(ours, expected)
    for ours, expected in zip(agent.model.get_weights(), online, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_copy_is_of_the_moment() -> None:
    """What the online net learns afterwards stays in it."""
    agent = letters_agent(target_interval=10)
    agent.after_steps(0, 10)
    before = agent.target.get_weights()
    for weight in agent.model.weights:
        weight.assign(weight + 1.0)
    agent.after_steps(10, 19)
    for ours, theirs in zip(before, agent.target.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_first_target_is_a_copy() -> None:
    """With the weights of the online net, and variables of its own."""
    agent = make_agent(ABCEnv(), (4,))
    assert same(agent.model, agent.target)
    agent.model.weights[0].assign(agent.model.weights[0] + 1.0)
    assert not same(agent.model, agent.target)


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_of_workers_reach_the_target(backend: Backend) -> None:
    """The server's steps count, whoever took them; a gradient changes only the online net."""
    agent = make_agent(
        ABCEnv(),
        (4,),
        keras.optimizers.SGD(),
        target_interval=10,
        learning_rate=Schedule.constant(1.0),
    )
    server = ParameterServer(agent)
    locals_ = [agent.clone() for _ in range(2)]
    connections = [connect(backend, server, local) for local in locals_]
    size = sum(int(np.prod(variable.shape)) for variable in agent.trainable_variables)
    first = agent.target.get_weights()[0]
    connections[0].exchange(tf.ones([size]), 6, 0)
    np.testing.assert_array_equal(agent.model.get_weights()[0], first - 1.0)
    np.testing.assert_array_equal(agent.target.get_weights()[0], first)
    connections[1].exchange(tf.ones([size]), 6, 0)
    assert same(agent.model, agent.target)
    np.testing.assert_array_equal(agent.target.get_weights()[0], first - 2.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_workers_pull_both_nets(backend: Backend) -> None:
    """The target net with the online one, each into its own place."""
    agent = letters_agent()
    server = ParameterServer(agent)
    local = make_agent(ABCEnv(), (4,), seed=1)
    connect(backend, server, local).pull()
    assert same(local.model, agent.model)
    assert same(local.target, agent.target)
    assert not same(agent.model, agent.target)


def test_clone_has_its_own_nets() -> None:
    """The same weights in both nets, but changes stay in one of the two agents."""
    agent = letters_agent(gamma=0.5)
    clone = agent.clone()
    assert clone.hyperparameters == agent.hyperparameters
    assert same(clone.model, agent.model)
    assert same(clone.target, agent.target)
    assert not same(clone.model, clone.target)
    for ours, theirs in zip(agent.variables, clone.variables, strict=True):
        theirs.assign(theirs + 1.0)
        assert (ours.numpy() != theirs.numpy()).all()


def test_clone_copies_its_own_nets() -> None:
    """Its target net follows its online net, not that of the agent it was made from."""
    agent = letters_agent(target_interval=10)
    clone = agent.clone()
    for weight in clone.model.weights:
        weight.assign(weight + 1.0)
    before = agent.target.get_weights()[0]
    clone.after_steps(0, 10)
    assert same(clone.target, clone.model)
    np.testing.assert_array_equal(agent.target.get_weights()[0], before)


def test_line_by_line(eagerly: None) -> None:
    """Without graphs: the target is copied."""
    agent = letters_agent(target_interval=10)
    agent.after_steps(0, 10)
    assert same(agent.target, agent.model)


# Hyper-parameters, saving, resuming ---------------------------------------------------------


def test_change() -> None:
    """Schedules can be changed in a run."""
    agent = letters_agent()
    agent.change(learning_rate=0.25, annealing=0.5)
    assert agent.scheduled(10**6) == {"learning_rate": 0.25, "annealing": 0.5}
    assert agent.exploration(0, 0) == pytest.approx(0.1 + 0.9 * 0.5)


@pytest.mark.parametrize("name", ["gamma", "target_interval", "nothing"])
def test_what_cannot_be_changed(name: str) -> None:
    """The message names it, and what can be; the rest is not changed either."""
    agent = letters_agent()
    before = agent.hyperparameters
    with pytest.raises(ValueError, match=f"{name} cannot be changed.*learning_rate, annealing"):
        agent.change(learning_rate=0.25, **{name: 0.5})
    assert agent.hyperparameters == before


def test_everything_comes_back(tmp_path: Path) -> None:
    """Both nets, in the order in which weights travel, and the hyper-parameters."""
    agent = letters_agent(
        gamma=0.5,
        learning_rate=Schedule(1.0, 0.0, 1000),
        max_gradient_norm=0.0,
        annealing=Schedule(1.0, 0.25, 2000),
        final_epsilons=(0.5, 0.0625),
        target_interval=123,
    )
    agent.save(tmp_path)
    loaded = load_agent(tmp_path)
    assert type(loaded) is NStepQAgent
    assert same(loaded.model, agent.model)
    assert same(loaded.target, agent.target)
    for ours, theirs in zip(agent.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert loaded.hyperparameters == agent.hyperparameters
    for name, value in vars(agent.hyperparameters).items():
        assert type(getattr(loaded.hyperparameters, name)) is type(value), name
    trained = {id(variable) for variable in loaded.trainable_variables}
    assert trained == {id(variable) for variable in loaded.model.trainable_variables}
    observations = np.random.default_rng(1).uniform(size=(50, 3))
    np.testing.assert_array_equal(loaded.act_batch(observations), agent.act_batch(observations))


def test_resumed_run_has_the_target(tmp_path: Path) -> None:
    """That of the run before, although the online net has gone on since the copy."""

    def run(seed: int, resume: bool) -> Agent:
        """Ends at the step at which it is resumed."""
        return train_agent_async(
            tmp_path,
            1,
            lambda index, test: ABCEnv(),
            steps=200,
            eval_interval=None,
            agent=make_agent(ABCEnv(), seed=seed, target_interval=150),
            resume=resume,
        )

    first, second = run(0, False), run(1, True)
    assert same(second.nets["model"], first.nets["model"])
    assert same(second.nets["target"], first.nets["target"])
    assert not same(second.nets["model"], second.nets["target"])


# Whole runs ---------------------------------------------------------------------------------


def make_letters(worker_index: int, test: bool) -> gym.Env:
    """Three letters, whose best return is 1 and whose return by chance is 1/27."""
    return ABCEnv()


@pytest.mark.parametrize("backend", BACKENDS)
def test_learns_the_letters(tmp_path: Path, backend: Backend) -> None:
    """Whoever the workers are, they find the best return; the agent kept knows it."""
    agent = make_agent(
        ABCEnv(),
        (16,),
        keras.optimizers.RMSprop(rho=0.99, epsilon=1e-5),
        gamma=0.9,
        learning_rate=Schedule.constant(0.005),
        annealing=Schedule(1.0, 0.0, 5_000),
        final_epsilons=(0.1, 0.3),
        target_interval=500,
    )
    train_agent_async(
        tmp_path,
        2,
        make_letters,
        steps=50_000,
        eval_interval=2_000,
        eval_n_episodes=10,
        successful_score=ABCEnv.OPTIMUM,
        agent=agent,
        backend=backend,
        envs_per_worker=8,
    )
    letters = np.eye(3, dtype=np.float32)
    assert list(load_agent(tmp_path / "successful").act_batch(letters)) == [0, 1, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_solves_cart_pole(tmp_path: Path, backend: Backend) -> None:
    """A mean of 475 over 100 episodes, and over 100 others with the agent that was kept."""
    make_env = RegisteredEnv("CartPole-v1")
    spaces = spaces_of(make_env)
    agent = NStepQAgent(
        build_action_value(*spaces, activation="relu"),
        *spaces,
        keras.optimizers.RMSprop(rho=0.99, epsilon=1e-5),
        NStepQHyperparameters(
            gamma=0.995,  # with 0.99 it takes longer to see the edge of the track coming
            learning_rate=Schedule.constant(0.005),
            max_gradient_norm=10.0,
            annealing=Schedule(1.0, 0.0, 20_000),
            final_epsilons=(0.1, 0.05),
            target_interval=2_000,
        ),
    )
    train_agent_async(
        tmp_path,
        2,
        make_env,
        steps=1_000_000,
        eval_interval=5_000,
        eval_n_episodes=100,
        successful_score=495.0,  # so that other episodes reach 475 too
        agent=agent,
        backend=backend,
        envs_per_worker=8,
        t_max=16,
        eval_envs=100,
    )
    assert mean_return(tmp_path / "successful", make_env) >= 475.0


def mean_return(directory: Path, make_env: RegisteredEnv) -> float:
    """That of a saved agent over 100 new episodes."""
    evaluator = Evaluator(load_agent(directory), make_env, 100, seed=99, envs=100)
    scores = evaluator.run()
    evaluator.close()
    assert scores is not None
    return scores.summary()["mean"]
