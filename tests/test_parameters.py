"""The global weights: pull, push, snapshot."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.parameters import ParameterServer
from a3c_tf.quiet import keras, tf
from a3c_tf.schedules import Schedule
from tests.envs import ABCEnv
from tests.helpers import make_agent

ONE = Schedule.constant(1.0)


def make_server(
    optimizer: keras.optimizers.Optimizer | None = None,
    learning_rate: Schedule = ONE,
    hidden_sizes: tuple[int, ...] = (),
) -> ParameterServer:
    """A server whose weights are all zero; plain SGD unless told otherwise."""
    agent = make_agent(
        ABCEnv(),
        hidden_sizes,
        optimizer or keras.optimizers.SGD(),
        learning_rate=learning_rate,
    )
    for variable in agent.variables:
        variable.assign(tf.zeros_like(variable))
    return ParameterServer(agent)


class Client:
    """A worker's nets and its connection."""

    def __init__(self, server: ParameterServer) -> None:
        self.nets = server.agent.clone()
        self.connection = server.connect(self.nets.weights)

    def push(self, gradient: float = 1.0, steps: int = 0, episodes: int = 0) -> None:
        """Pushes a gradient that is the same number for each weight."""
        size = sum(weight.shape.num_elements() for weight in self.nets.weights)
        self.connection.exchange(tf.fill([size], gradient), steps, episodes)


def flat(variables: Any) -> npt.NDArray[np.float32]:
    """All weights of some variables, in one row."""
    return np.concatenate([np.ravel(variable) for variable in variables])


def the_number(variables: Any) -> float:
    """The number that all weights of the variables are equal to, exactly."""
    weights = flat(variables)
    assert weights.min() == weights.max(), "mixed weights"
    return float(weights[0])


def in_threads(*functions: Callable[[], None]) -> None:
    """Runs functions at the same time and raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def busy_interpreter() -> Iterator[None]:
    """Python switches threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


# Threads ------------------------------------------------------------------------------------


def test_no_push_is_lost(busy_interpreter: None) -> None:
    """4 threads pushing gradient 1, 100 times each, with SGD at lr 1, give exactly -400."""
    server = make_server(hidden_sizes=(64, 64))
    clients = [Client(server) for _ in range(4)]
    lags: list[int] = []

    def push(client: Client) -> None:
        for _ in range(100):
            client.push(steps=3, episodes=1)
            lags.append(client.connection.lag)

    in_threads(*(partial(push, client) for client in clients))
    assert the_number(server.agent.weights) == -400.0
    assert (server.version, server.global_step, server.episodes) == (400, 1200, 400)
    # From one push of a client to its next, its version grows by the lag and its own gradient.
    assert sum(lags) == sum(client.connection.version - 100 for client in clients)


def test_pull_and_snapshot_are_of_one_version(busy_interpreter: None) -> None:
    """While others push: no mixed weights, and the version and counters belong to them."""
    server = make_server(hidden_sizes=(64, 64))
    clients, watcher = [Client(server) for _ in range(2)], Client(server)
    over = threading.Event()

    def push(client: Client) -> None:
        for _ in range(200):
            client.push(steps=3)
            assert_is_of_its_version(client)

    def push_all() -> None:
        try:
            in_threads(*(partial(push, client) for client in clients))
        finally:
            over.set()

    def pull() -> None:
        while not over.is_set():
            watcher.connection.pull()
            assert_is_of_its_version(watcher)

    def take_snapshots() -> None:
        while not over.is_set():
            snapshot = server.snapshot()
            assert the_number(snapshot.weights) == -snapshot.version
            assert snapshot.global_step == 3 * snapshot.version

    def assert_is_of_its_version(client: Client) -> None:
        assert the_number(client.nets.weights) == -client.connection.version
        assert client.connection.step == 3 * client.connection.version

    in_threads(pull, take_snapshots, push_all)
    assert server.version == 400


# Versions and counters ----------------------------------------------------------------------


def test_exchange_applies_and_pulls() -> None:
    """The pusher has the newest weights at once; others keep theirs until they ask."""
    server = make_server()
    first, second = Client(server), Client(server)
    first.push()
    assert the_number(first.nets.weights) == the_number(server.agent.weights) == -1.0
    assert the_number(second.nets.weights) == 0.0
    second.connection.pull()
    assert the_number(second.nets.weights) == -1.0


def test_each_weight_gets_its_own_gradient() -> None:
    """The flat gradient is in the order of the trainable variables."""
    server = make_server(hidden_sizes=(2,))
    client = Client(server)
    size = flat(server.agent.weights).size
    client.connection.exchange(tf.range(float(size)), 0, 0)
    np.testing.assert_array_equal(flat(server.agent.trainable_variables), -np.arange(size))
    np.testing.assert_array_equal(flat(client.nets.trainable_variables), -np.arange(size))


def test_lag() -> None:
    """How many gradients of others were applied between the last pull and push."""
    server = make_server()
    first, second = Client(server), Client(server)
    lags = []
    for client in (first, second, second, first, first, second):
        client.push()
        lags.append(client.connection.lag)
    assert lags == [0, 1, 0, 2, 0, 2]
    first.connection.pull()
    first.push()
    assert first.connection.lag == 0
    assert server.version == first.connection.version == 7
    assert second.connection.version == 6


def test_counters() -> None:
    """Steps and episodes come with gradients or without; only a gradient makes a version."""
    server = ParameterServer(make_agent(ABCEnv()), global_step=100)
    client = Client(server)
    client.push(steps=5, episodes=2)
    client.connection.count(3, 1)
    assert (server.global_step, server.episodes, server.version) == (108, 3, 1)
    assert client.connection.step == 105


# Optimizer ----------------------------------------------------------------------------------


def test_one_optimizer_with_shared_statistics() -> None:
    """Shared RMSProp as in the paper: one g, epsilon inside the root, (7e-4, 0.99, 0.1)."""
    optimizer = keras.optimizers.RMSprop(rho=0.99, epsilon=0.1)
    server = make_server(optimizer, Schedule.constant(7e-4))
    assert optimizer.built
    slots = len(optimizer.variables)
    clients = [Client(server) for _ in range(2)]
    g = weight = 0.0
    for number, gradient in enumerate([1.0, -2.0, 3.0, 0.5]):
        clients[number % 2].push(gradient)
        g = 0.99 * g + 0.01 * gradient**2
        weight -= 7e-4 * gradient / np.sqrt(g + 0.1)
        np.testing.assert_allclose(flat(server.agent.weights), weight, rtol=1e-5)
    assert len(optimizer.variables) == slots
    assert optimizer.iterations == 4


def test_default_optimizer_is_the_papers() -> None:
    """RMSprop with rho 0.99 and epsilon 0.1."""
    optimizer = make_agent(ABCEnv()).optimizer
    assert isinstance(optimizer, keras.optimizers.RMSprop)
    assert (optimizer.rho, optimizer.epsilon) == (0.99, 0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(momentum=0.9, nesterov=True),
        keras.optimizers.Adam,
        lambda: keras.optimizers.AdamW(weight_decay=0.1),
        lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
        lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=2),
    ],
    ids=["momentum", "Adam", "AdamW", "accumulation", "averages"],
)
def test_any_keras_optimizer(make: Callable[[], keras.optimizers.Optimizer]) -> None:
    """The same weights as when Keras applies the gradients by itself."""
    server = make_server(make(), Schedule.constant(0.01))
    clients = [Client(server) for _ in range(2)]
    alone, optimizer = keras.Variable(np.zeros(3, np.float32)), make()
    optimizer.learning_rate = 0.01
    for number, gradient in enumerate([1.0, -2.0, 3.0, 0.5]):
        clients[number % 2].push(gradient)
        optimizer.apply([tf.fill([3], gradient)], [alone])
    np.testing.assert_allclose(flat(server.agent.weights), alone.numpy()[0], rtol=1e-5)


def test_learning_rate_follows_the_global_step() -> None:
    """That of the step before the push; 0 past the end, never negative."""
    server = make_server(learning_rate=Schedule(1.0, 0.0, 10))
    client = Client(server)
    expected = 0.0
    for rate in (1.0, 0.6, 0.2, 0.0, 0.0):
        client.push(steps=4)
        expected -= rate
        np.testing.assert_allclose(flat(server.agent.weights), expected, rtol=1e-6)


class _ExploringAgent(A3CAgent):
    def exploration(self, global_step: int, worker: int) -> float:
        return 100.0 * worker + global_step


def test_exploration_comes_with_the_weights() -> None:
    """That of the global step at which they were read, and of the worker."""
    linear = make_agent(ABCEnv())
    spaces = linear.observation_space, linear.action_space
    server = ParameterServer(_ExploringAgent(linear.model, *spaces, keras.optimizers.SGD()))
    nets = server.agent.clone()
    connection = server.connect(nets.weights, worker=3)
    connection.pull()
    assert connection.exploration == 300.0
    connection.exchange(tf.zeros([flat(nets.weights).size]), 4, 0)
    assert connection.exploration == 304.0
    Client(server).push(steps=5)
    assert connection.exploration == 304.0
    connection.pull()
    assert connection.exploration == 309.0


def test_whole_number_as_learning_rate() -> None:
    """`Schedule.constant(1)` is as good as 1.0."""
    server = make_server(learning_rate=Schedule.constant(1))
    Client(server).push()
    assert the_number(server.agent.weights) == -1.0


def test_line_by_line(eagerly: None) -> None:
    """Pull and push without compiled graphs."""
    server = make_server()
    first, second = Client(server), Client(server)
    first.push()
    second.connection.pull()
    assert the_number(second.nets.weights) == -1.0


# Snapshots ----------------------------------------------------------------------------------


def test_snapshot_is_a_copy() -> None:
    """Later pushes do not change it."""
    server = make_server()
    client = Client(server)
    client.push()
    snapshot = server.snapshot()
    client.push()
    assert the_number(snapshot.weights) == -1.0
    assert snapshot.version == 1


def test_restored_run_goes_on_the_same() -> None:
    """Weights, the optimizer's slots and the counters: the next push has the same effect."""
    first = make_server(keras.optimizers.Adam(), Schedule(0.1, 0.0, 100))
    client = Client(first)
    for gradient in (1.0, -3.0):
        client.push(gradient, steps=20, episodes=1)
    snapshot = first.snapshot()
    assert (snapshot.global_step, snapshot.version, snapshot.episodes) == (40, 2, 2)

    second = make_server(keras.optimizers.Adam(), Schedule(0.1, 0.0, 100))
    second.restore(snapshot)
    assert (second.global_step, second.version, second.episodes) == (40, 2, 2)
    for server in (first, second):
        Client(server).push(2.0)
    np.testing.assert_array_equal(flat(first.agent.weights), flat(second.agent.weights))
    for ours, theirs in zip(first.snapshot().optimizer, second.snapshot().optimizer, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "other",
    [
        lambda: make_server(hidden_sizes=(4,)),
        lambda: make_server(keras.optimizers.Adam()),
    ],
    ids=["nets", "optimizer"],
)
def test_snapshot_of_something_else(other: Callable[[], ParameterServer]) -> None:
    """It is refused before anything has been changed."""
    server = make_server()
    Client(server).push()
    with pytest.raises(ValueError, match="shapes"):
        server.restore(other().snapshot())
    assert the_number(server.agent.weights) == -1.0
    assert server.version == 1
