"""The iteration of a worker."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from a3c_tf.actions import DiscreteActions
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.distributions import Categorical
from a3c_tf.envs.runner import EnvRunner
from a3c_tf.parameters import ParameterServer
from a3c_tf.quiet import keras, tf
from a3c_tf.schedules import Schedule
from a3c_tf.worker import Worker
from tests.envs import (
    MAX_LENGTH,
    STEP,
    ABCEnv,
    BrokenEnvError,
    Ending,
    FailingEnv,
    KnownEnv,
    Transition,
    where_is,
)
from tests.helpers import Push, RecordingConnection, make_agent, stop_after, vector

HIDDEN = (6,)
T_MAX, ENVS = 3, 2  # where a test needs nothing else, so that the trace is shared


@pytest.fixture(scope="module")
def make_worker() -> Callable[..., Worker]:
    """Makes workers for `KnownEnv`; those of one kind share one trace, which is slow to make."""
    traced: dict[tuple[Any, ...], Worker] = {}

    def make(
        t_max: int = T_MAX,
        envs: int = ENVS,
        hidden_sizes: Sequence[int] = HIDDEN,
        index: int = 0,
        seed: int = 0,
        start: int = 0,
        server: ParameterServer | None = None,
        **hyperparameters: Any,
    ) -> Worker:
        agent = make_agent(KnownEnv(start=start), hidden_sizes, **hyperparameters)
        connection: Any = RecordingConnection(agent.exploration(0, index))
        if server:
            connection = server.connect(agent.weights, index)
        kind = (t_max, envs, hidden_sizes, start, agent.hyperparameters)
        worker = Worker(index, agent, connection, t_max, envs, seed, traced.get(kind))
        traced.setdefault(kind, worker)
        return worker

    return make


def make_server(agent: A3CAgent | None = None) -> ParameterServer:
    """The global side for workers of the usual kind, with plain SGD."""
    return ParameterServer(agent or make_agent(KnownEnv(), HIDDEN, keras.optimizers.SGD()))


def run(worker: Worker, *envs: gym.Env, iterations: int = 1) -> list[Push]:
    """Runs some iterations of a worker with a `RecordingConnection`; what it pushed."""
    worker.run(EnvRunner(vector(*envs), worker.t_max), stop_after(iterations))
    assert isinstance(worker.connection, RecordingConnection)
    return worker.connection.pushes


def logged(worker: Worker) -> dict[str, float]:
    """The statistics of a worker since its last report, summed over the iterations."""
    return dict(zip(worker.statistics, np.ravel(worker.take_report().statistics), strict=True))


def by_variable(
    agent: A3CAgent, gradient: npt.NDArray[np.float32]
) -> dict[str, npt.NDArray[np.float32]]:
    """The parts of a flat gradient, by the paths of the variables."""
    shapes = {variable.path: variable.shape for variable in agent.trainable_variables}
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes.values()])
    parts = np.split(gradient, ends[:-1])
    return {path: part.reshape(shapes[path]) for path, part in zip(shapes, parts, strict=True)}


def by_rollout(env: KnownEnv, t_max: int, rollouts: int) -> list[list[Transition]]:
    """What an environment did in each rollout; the step after an episode's end is its reset."""
    history, resetting = iter(env.history), False
    result: list[list[Transition]] = []
    for _ in range(rollouts):
        result.append([])
        for _ in range(t_max):
            if resetting:
                resetting = False
                continue
            step = next(history)
            result[-1].append(step)
            resetting = step.terminated or step.truncated
    assert next(history, None) is None
    return result


# Returns, read from the gradients of a table of values -----------------------------------------

TABLE_NETS: dict[str, Any] = {"envs": 1, "hidden_sizes": (), "gamma": 0.9, "max_gradient_norm": 0.0}


def targets(worker: Worker, env: KnownEnv, iterations: int, table: Sequence[float]) -> list[float]:
    """The return R that each step's value is drawn to, where V(s) is the table's by step.

    The gradient of c * mean (R - V)^2 for a step's number in the table is 2c * (V - R) / steps.
    """
    kernel = np.zeros((STEP + MAX_LENGTH + 1, 1), np.float32)
    kernel[STEP : STEP + len(table), 0] = table
    agent = worker.agent
    agent.model.get_layer("value_output").set_weights([kernel, np.zeros(1)])
    found = []
    pushes = run(worker, env, iterations=iterations)
    for push, steps in zip(pushes, by_rollout(env, worker.t_max, iterations), strict=True):
        rows = by_variable(agent, push.gradient)["value_output/kernel"][STEP:, 0]
        for transition in steps:
            step = where_is(transition.observation)[2]
            scale = 2.0 * agent.hyperparameters.value_coefficient / push.steps
            found.append(table[step] - rows[step] / scale)
    return found


@pytest.mark.parametrize("t_max", [1, 2, 6])
@pytest.mark.parametrize(("ending", "last"), [("truncated", 7.3), ("terminated", 1), ("both", 1)])
def test_bootstrap_at_the_end_of_an_episode(
    make_worker: Callable[..., Worker], t_max: int, ending: Ending, last: float
) -> None:
    """Reward 1, end at step 5, V = 7, gamma 0.9: the last target is 7.3 only if truncated.

    V of a reset observation is 100, to show that no end bootstraps from it.
    """
    worker = make_worker(t_max, **TABLE_NETS)
    found = targets(worker, KnownEnv(ending=ending), 6 // t_max, [100.0] + [7.0] * 5)
    assert len(found) == 5
    assert found[4] == pytest.approx(last, abs=1e-4)


@pytest.mark.parametrize(
    ("t_max", "errors"), [(1, [0.0] * 4), (2, [0.5, 0.5, 0.0, 0.5]), (4, [0.5] * 4)]
)
def test_reward_on_the_last_step(
    make_worker: Callable[..., Worker], t_max: int, errors: list[float]
) -> None:
    """Terminal after 4 steps: targets gamma^3, gamma^2, gamma, 1, whatever T.

    V may be wrong, except where a rollout ends within the episode.
    """
    expected = 0.9 ** np.array([3, 2, 1, 0])
    env = KnownEnv(rewards=(0, 0, 0, 1), ending="terminated")
    table = [*(expected + errors), 50.0]
    found = targets(make_worker(t_max, **TABLE_NETS), env, 4 // t_max, table)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_new_environments(make_worker: Callable[..., Worker]) -> None:
    """A worker that is given others starts from their first observation."""
    worker = make_worker(1, **TABLE_NETS)
    run(worker, KnownEnv())
    worker.connection = RecordingConnection()
    found = targets(worker, KnownEnv(rewards=(5.0,), ending="terminated"), 1, [1.0])
    assert found == [pytest.approx(5.0)]


def test_reset_step_has_no_gradient(make_worker: Callable[..., Worker]) -> None:
    """A rollout that is nothing but the reset: no gradient, no step, no episode."""
    worker = make_worker(1, **TABLE_NETS)
    pushes = run(worker, KnownEnv(rewards=(1.0,), ending="terminated"), iterations=4)
    assert [(push.steps, push.episodes) for push in pushes] == [(1, 1), (0, 0), (1, 1), (0, 0)]
    for push in pushes:
        assert push.gradient.any() == bool(push.steps)


# Gradients, against a plain computation ---------------------------------------------------------

START = 3  # the number of the first action


def value_of(agent: A3CAgent, observation: npt.NDArray[np.float32]) -> float:
    """V(s) of nets with one hidden layer, in NumPy."""
    hidden, output = (
        agent.model.get_layer(name).get_weights() for name in ("value_0", "value_output")
    )
    return float(np.tanh(observation @ hidden[0] + hidden[1]) @ output[0][:, 0] + output[1][0])


def plain_gradients(
    agent: A3CAgent, rollouts: list[list[Transition]], beta: float
) -> tuple[npt.NDArray[Any], float]:
    """The gradient of some environments' steps, clipped, and its norm before that.

    Written down from the formulas, one valid step after the other, without masks or [T, K].
    """
    h = agent.hyperparameters
    steps, advantages = [], []
    for rollout in rollouts:
        for t, step in enumerate(rollout):
            advantage, decay = 0.0, 1.0
            for later in rollout[t:]:
                bootstrap = 0.0 if later.terminated else value_of(agent, later.next_observation)
                delta = later.reward + h.gamma * bootstrap - value_of(agent, later.observation)
                advantage += decay * delta
                decay *= h.gamma * h.gae_lambda
                if later.terminated or later.truncated:
                    break
            steps.append(step)
            advantages.append(advantage)
    observations = np.array([step.observation for step in steps])
    actions = np.array([step.action for step in steps]) - START
    returns = [value_of(agent, step.observation) for step in steps] + np.array(advantages)
    with tf.GradientTape() as tape:
        logits, values = agent.model(observations)
        log_pi = tf.math.log(tf.nn.softmax(logits))
        of_taken = tf.reduce_sum(log_pi * np.eye(2, dtype=np.float32)[actions], axis=1)
        entropies = -tf.reduce_sum(tf.exp(log_pi) * log_pi, axis=1)
        loss = tf.reduce_sum(
            -of_taken * np.array(advantages, np.float32)
            + h.value_coefficient * (returns.astype(np.float32) - values) ** 2
            - beta * entropies
        )
        if h.reduction == "mean":
            loss /= len(steps)
    gradients = tape.gradient(loss, agent.trainable_variables)
    gradient = np.concatenate([np.ravel(part) for part in gradients])
    norm = float(np.linalg.norm(gradient))
    clip = min(1.0, h.max_gradient_norm / norm) if h.max_gradient_norm else 1.0
    return clip * gradient, norm


@pytest.mark.parametrize(
    "hyperparameters",
    [
        {"gamma": 0.9, "gae_lambda": 1.0, "max_gradient_norm": 0.0, "reduction": "mean"},
        {"gamma": 0.8, "gae_lambda": 0.7, "max_gradient_norm": 0.5, "reduction": "sum"},
    ],
    ids=["mean", "clipped sum"],
)
def test_gradients_equal_a_plain_computation(
    make_worker: Callable[..., Worker], hyperparameters: dict[str, Any]
) -> None:
    """The compiled iteration and the formulas, over episodes of all lengths and endings."""
    beta = 0.125
    worker = make_worker(
        5, 4, start=START, entropy_coefficient=Schedule.constant(beta), **hyperparameters
    )
    envs = [
        KnownEnv(0.1, (1.0, -2.0, 3.0), "terminated", start=START),
        KnownEnv(0.2, (0.5, 1.5), "truncated", start=START),
        KnownEnv(0.3, (2.0,), "both", start=START),
        KnownEnv(0.4, (1.0, 0.0, -1.0, 2.0, 0.5, 1.0, 3.0), "truncated", start=START),
    ]
    iterations = 5
    pushes = run(worker, *envs, iterations=iterations)
    rollouts = zip(*(by_rollout(env, worker.t_max, iterations) for env in envs), strict=True)
    norms = 0.0
    for push, steps in zip(pushes, rollouts, strict=True):
        expected, norm = plain_gradients(worker.agent, list(steps), beta)
        np.testing.assert_allclose(push.gradient, expected, rtol=1e-4, atol=1e-5)
        norms += norm
        assert push.steps == sum(map(len, steps))
        assert push.episodes == sum(s.terminated or s.truncated for env in steps for s in env)
    assert logged(worker)["train/gradient_norm"] == pytest.approx(norms, rel=1e-4)


class RecordingActions(DiscreteActions):
    """Keeps the log-probabilities of every distribution, each time that the graph runs."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        super().__init__(space)
        self.record: list[npt.NDArray[np.float32]] = []

    def distribution(self, outputs: Any, mask: Any = None) -> Categorical:
        """The distribution, recorded."""
        distribution = super().distribution(outputs)
        tf.numpy_function(
            lambda x: self.record.append(x.copy()), [distribution.log_probabilities], []
        )
        return distribution


def test_loss_sees_the_log_probabilities_that_acted() -> None:
    """Recomputed for the gradients, they are those that the actions were drawn from."""
    agent = make_agent(KnownEnv(), HIDDEN)
    agent.actions = actions = RecordingActions(gym.spaces.Discrete(2))
    worker = Worker(0, agent, make_server().connect(agent.weights), T_MAX, ENVS)
    worker.run(EnvRunner(vector(KnownEnv(0), KnownEnv(1)), T_MAX), stop_after(2))
    assert len(actions.record) == 2 * (T_MAX + 1)
    for rollout in (actions.record[: T_MAX + 1], actions.record[T_MAX + 1 :]):
        np.testing.assert_allclose(np.stack(rollout[:-1]), rollout[-1], atol=1e-6)


def test_entropy_weight_follows_the_global_step(make_worker: Callable[..., Worker]) -> None:
    """It is what comes with the weights; whole numbers will do."""
    worker = make_worker(entropy_coefficient=Schedule(1, 0, 100), value_coefficient=0.25)
    for global_step, beta in [(0, 1.0), (40, 0.6), (200, 0.0)]:
        worker.connection = RecordingConnection(worker.agent.exploration(global_step, 0))
        run(worker, KnownEnv(0), KnownEnv(1))
        terms = logged(worker)
        assert terms["loss/total"] == pytest.approx(
            terms["loss/policy"] + 0.25 * terms["loss/value"] - beta * terms["loss/entropy"],
            rel=1e-5,
        )
        assert terms["loss/entropy"] > 0.1


# Actions ----------------------------------------------------------------------------------------


def actions_of(worker: Worker, iterations: int) -> npt.NDArray[np.int64]:
    """The actions that two environments are given, [iterations * T, K]."""
    envs = [KnownEnv(k, (1.0,) * MAX_LENGTH) for k in range(ENVS)]
    run(worker, *envs, iterations=iterations)
    return np.array([[step.action for step in env.history] for env in envs]).T


def test_actions_are_drawn_from_the_policy(make_worker: Callable[..., Worker]) -> None:
    """A policy that is sure of an action takes it; one that is not takes both."""
    worker = make_worker()
    assert set(actions_of(worker, 10).flat) == {0, 1}
    worker.agent.model.get_layer("policy_output").bias.assign([0.0, 200.0])
    assert set(actions_of(worker, 5).flat) == {1}


def test_draws_are_a_function_of_the_seed(make_worker: Callable[..., Worker]) -> None:
    """The same for the same seed, another for another one; no rollout repeats the one before."""
    first, again, other = (actions_of(make_worker(seed=seed), 2) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first[:T_MAX] != first[T_MAX:]).any()
    assert (first[:, 0] != first[:, 1]).any()


# Weights ----------------------------------------------------------------------------------------


def test_local_nets_change_only_between_rollouts(make_worker: Callable[..., Worker]) -> None:
    """Others push at every step; the worker sees it in the next rollout, and counts the lag."""
    server = make_server()
    worker = make_worker(server=server)
    other = server.connect(server.agent.clone().weights)
    ones = tf.ones([sum(weight.shape.num_elements() for weight in server.agent.weights)])
    seen: list[npt.NDArray[np.float32]] = []

    def meanwhile() -> None:
        seen.append(worker.agent.model.get_weights()[0])
        other.exchange(ones, 0, 0)

    envs = vector(KnownEnv(0, (1.0,) * MAX_LENGTH, on_step=meanwhile), KnownEnv(1))
    worker.run(EnvRunner(envs, T_MAX), stop_after(2))
    first, second = np.array(seen[:T_MAX]), np.array(seen[T_MAX:])
    assert (first == first[0]).all()
    assert (second == second[0]).all()
    assert (first[0] != second[0]).all()
    for ours, theirs in zip(worker.agent.variables, server.agent.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert worker.take_report().lag == 2 * T_MAX


def test_starts_from_the_global_weights(make_worker: Callable[..., Worker]) -> None:
    """The first rollout is made with the weights of the globals, not those of the clone."""
    agent = make_agent(KnownEnv(), HIDDEN, keras.optimizers.SGD())
    agent.model.get_layer("policy_output").bias.assign([0.0, 200.0])
    env = KnownEnv()
    worker = make_worker(server=make_server(agent))
    worker.run(EnvRunner(vector(env, KnownEnv()), T_MAX), stop_after(1))
    assert {step.action for step in env.history} == {1}


# Traces -----------------------------------------------------------------------------------------


def test_traced_once(make_worker: Callable[..., Worker]) -> None:
    """The Python code of the loss runs once for all iterations, and not for another worker."""
    calls = []

    class CountingAgent(A3CAgent):
        def loss(self, *arguments: Any) -> Any:
            calls.append(1)
            return super().loss(*arguments)

    def agent() -> A3CAgent:
        plain = make_agent(KnownEnv(), HIDDEN)
        return CountingAgent(plain.model, plain.observation_space, plain.action_space)

    first = Worker(0, agent(), RecordingConnection(), T_MAX, ENVS)
    second = Worker(1, agent(), RecordingConnection(), T_MAX, ENVS, like=first)
    for worker in (first, second):
        run(worker, KnownEnv(0), KnownEnv(1, (1.0,)), iterations=3)
    assert len(calls) == 1


def pushes_of(worker: Worker) -> list[Push]:
    """What a worker does with certain environments in three rollouts."""
    envs = KnownEnv(3, (1.0, 2.0)), KnownEnv(4, (3.0,) * 4, "terminated")
    return run(worker, *envs, iterations=3)


def test_shared_trace_is_as_good_as_an_own_one(make_worker: Callable[..., Worker]) -> None:
    """With weights, a seed and environments other than those of the worker that was traced."""
    first = make_worker()
    run(first, KnownEnv(), KnownEnv())
    shared, alone = (
        Worker(
            index,
            make_agent(KnownEnv(), HIDDEN, seed=5),
            RecordingConnection(),
            T_MAX,
            ENVS,
            seed=7,
            like=like,
        )
        for index, like in ((1, first), (0, None))
    )
    for ours, theirs in zip(pushes_of(shared), pushes_of(alone), strict=True):
        assert ours[1:] == theirs[1:]
        np.testing.assert_array_equal(ours.gradient, theirs.gradient)


def test_line_by_line(make_worker: Callable[..., Worker], eagerly: None) -> None:
    """Without graphs: the same steps and gradients."""
    agent = make_agent(KnownEnv(), HIDDEN)
    eager = Worker(0, agent, RecordingConnection(agent.exploration(0, 0)), T_MAX, ENVS)
    line_by_line = pushes_of(eager)
    tf.config.run_functions_eagerly(False)
    for ours, theirs in zip(line_by_line, pushes_of(make_worker()), strict=True):
        assert ours[1:] == theirs[1:]
        np.testing.assert_allclose(ours.gradient, theirs.gradient, rtol=1e-4, atol=1e-6)


# Counting and ending ----------------------------------------------------------------------------


def test_global_step_is_the_number_of_real_steps(make_worker: Callable[..., Worker]) -> None:
    """Two threads; the environments count for themselves; overshoot below workers * K * T."""
    server = make_server()
    workers = [make_worker(index=index, server=server, seed=index) for index in range(2)]
    envs = [[KnownEnv(0, (1.0,)), KnownEnv(1, (1.0,) * 5)] for _ in workers]
    limit = 200
    threads = [
        threading.Thread(
            target=worker.run,
            args=(EnvRunner(vector(*two), T_MAX), lambda: server.global_step >= limit),
        )
        for worker, two in zip(workers, envs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [step for two in envs for env in two for step in env.history]
    assert server.global_step == len(taken)
    assert server.episodes == sum(step.truncated for step in taken)
    assert limit <= server.global_step < limit + len(workers) * ENVS * T_MAX
    reports = [worker.take_report() for worker in workers]
    assert server.version == sum(report.iterations for report in reports)
    assert server.global_step == sum(report.steps for report in reports)


def test_interrupted_rollout(make_worker: Callable[..., Worker]) -> None:
    """Its steps are counted; a gradient of half a rollout is not pushed."""
    server = make_server()
    envs = [KnownEnv(0, (1.0,)), KnownEnv(1, (1.0,) * 5)]

    def over() -> bool:
        return len(envs[1].history) >= T_MAX + 2

    make_worker(server=server).run(EnvRunner(vector(*envs), T_MAX, should_stop=over), over)
    assert server.version == 1
    assert server.global_step == sum(len(env.history) for env in envs) == 8
    assert server.episodes == 4


def test_report(make_worker: Callable[..., Worker]) -> None:
    """Sums since the last report, then from zero again."""
    worker = make_worker()
    run(worker, KnownEnv(0, (1.0,)), KnownEnv(1), iterations=4)
    report, empty = worker.take_report(), worker.take_report()
    assert (report.iterations, report.steps) == (4, 6 + 10)
    assert np.shape(report.statistics) == (len(worker.statistics),)
    assert np.all(report.statistics)
    assert min(report.act, report.env, report.learn, report.push) > 0.0
    assert (empty.iterations, empty.steps, empty.lag) == (0, 0, 0)
    assert not np.any(empty.statistics)


def test_takes_turns(make_worker: Callable[..., Worker]) -> None:
    """`turn` is held while an iteration lasts, and let go in between."""
    log: list[str] = []

    class Turns:
        def __enter__(self) -> None:
            log.append("in")

        def __exit__(self, *error: object) -> None:
            log.append("out")

    env = KnownEnv(rewards=(1.0,) * MAX_LENGTH, on_step=lambda: log.append("step"))
    envs = vector(env, KnownEnv())
    make_worker().run(EnvRunner(envs, T_MAX), stop_after(2), Turns)
    assert log[:2] == ["in", "out"]  # to take the first weights
    assert log[2:-2] == ["in", *["step"] * T_MAX, "out"] * 2
    assert log[-2:] == ["in", "out"]  # in which it is told to stop


@pytest.mark.parametrize("where", ["reset", 0, 4])
@pytest.mark.parametrize("error", [BrokenEnvError, KeyboardInterrupt, SystemExit])
def test_environment_error_comes_out_as_itself(
    make_worker: Callable[..., Worker], where: Any, error: type[BaseException]
) -> None:
    """Not as an error of TensorFlow's, with the place where it arose, and the steps counted."""
    server = make_server()
    envs = KnownEnv(0), FailingEnv(where, error, worker=1)
    with pytest.raises(error, match=f"broken in {where}") as caught:
        make_worker(server=server).run(EnvRunner(vector(*envs), T_MAX), stop_after(10))
    assert type(caught.value) is error
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "_fail_if"
    assert frames[-2].name == ("reset" if where == "reset" else "step")
    # The step in which one environment breaks has no result for the others either.
    assert server.global_step == 2 * len(envs[1].history) == 2 * (0 if where == "reset" else where)
    assert server.version == server.global_step // (ENVS * T_MAX)


@pytest.mark.parametrize(
    "env",
    [
        lambda: KnownEnv(rewards=(1.0, float("nan"), 1.0, 1.0)),
        lambda: KnownEnv(rewards=(1.0, float("inf"), 1.0, 1.0)),
        lambda: KnownEnv(worker=float("nan")),
        lambda: KnownEnv(worker=float("inf")),
    ],
    ids=["NaN reward", "infinite reward", "NaN observation", "infinite observation"],
)
def test_numbers_that_are_not_finite(
    make_worker: Callable[..., Worker], env: Callable[[], KnownEnv]
) -> None:
    """FloatingPointError, which names the worker, before the globals are touched."""
    server = make_server()
    before = server.snapshot()
    with pytest.raises(FloatingPointError, match="worker 3"):
        make_worker(index=3, server=server).run(
            EnvRunner(vector(KnownEnv(), env()), T_MAX), stop_after(1)
        )
    after = server.snapshot()
    assert after.version == 0
    for arrays in (before.weights, after.weights), (before.optimizer, after.optimizer):
        for ours, theirs in zip(*arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)


# Learning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 2])
def test_learns_the_optimum(start: int) -> None:
    """Three letters, whose best return is 1 and whose return by chance is 1/27."""
    agent = make_agent(
        ABCEnv(3, start),
        (16,),
        keras.optimizers.RMSprop(rho=0.99, epsilon=1e-5),
        gamma=0.9,
        learning_rate=Schedule.constant(0.01),
    )
    server = ParameterServer(agent)
    local = agent.clone()
    worker = Worker(0, local, server.connect(local.weights), t_max=5, envs=8)
    runner = EnvRunner(vector(*(ABCEnv(3, start) for _ in range(8))), 5)
    scores: list[float] = []

    def solved() -> bool:
        scores.extend(episode.episode_return for episode in runner.take_episodes())
        best = bool(np.mean(scores[-100:] or 0.0) > 0.95 * ABCEnv.OPTIMUM)
        return best or server.global_step > 50_000

    worker.run(runner, solved)
    assert np.mean(scores[:20]) < 0.5
    assert server.global_step <= 50_000
    letters = np.eye(3, dtype=np.float32)
    assert list(agent.act_batch(letters, greedy=True)) == [start, start + 1, start + 2]
