"""The agent: acting, loss, saving."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import a3c_tf
from a3c_tf.agents.a3c import A3CAgent, A3CHyperparameters
from a3c_tf.agents.learning import Rollout
from a3c_tf.agents.loading import load_agent
from a3c_tf.networks import build_actor_critic
from a3c_tf.quiet import keras, tf
from a3c_tf.schedules import Schedule
from tests.envs import ABCEnv
from tests.helpers import STATEFUL, make_agent, rollout_of

OBSERVATIONS = np.random.default_rng(0).uniform(size=(50, 3)).astype(np.float32)

ACT = """
import sys
import numpy as np
from a3c_tf.agents.loading import load_agent
observations = np.load(sys.argv[1])
for directory in sys.argv[2:]:
    agent = load_agent(directory)
    actions = [agent.act_batch(observations), agent.act_batch(observations, greedy=True)]
    np.save(directory + ".npy", actions)
"""


def trained(agent: A3CAgent) -> A3CAgent:
    """The agent, with weights that are not those it was made with."""
    for number, weight in enumerate(agent.weights):
        if weight.shape.rank:  # not the count of a normalisation
            weight.assign(weight + np.sin(number + np.arange(weight.shape[-1])) / 2)
    return agent


def abc_agent(start: int = 0, **options: Any) -> A3CAgent:
    """An agent for three letters with one hidden layer."""
    return trained(make_agent(ABCEnv(3, start), hidden_sizes=(4,), **options))


def rollout(steps: int = 3, envs: int = 2) -> Rollout:
    """Random steps of `ABCEnv` with ends of both kinds and a reset step after each."""
    rng = np.random.default_rng(2)
    observations = rng.uniform(size=(steps + 1, envs, 3)).astype(np.float32)
    terminated, truncated = np.zeros((2, steps, envs), np.float32)
    terminated[0, 0] = truncated[0, 1] = 1.0
    valid = np.ones((steps, envs), np.float32)
    valid[1] = 0.0
    actions = rng.integers(3, size=(steps, envs))
    rewards = rng.normal(size=(steps, envs)).astype(np.float32)
    return rollout_of(observations, actions, rewards, terminated, truncated, valid)


def test_nets_take_observations_without_a_warning() -> None:
    """Keras has nothing to say when the policy and the value net are called."""
    agent = abc_agent()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert agent.policy(OBSERVATIONS).shape == (50, 3)
        assert [output.shape for output in agent.model(OBSERVATIONS)] == [(50, 3), (50,)]


# Acting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 5])
def test_greedy_action_is_the_most_likely_one(start: int) -> None:
    """Counted from the space's start."""
    agent = abc_agent(start)
    expected = np.argmax(agent.policy(OBSERVATIONS), axis=-1) + start
    np.testing.assert_array_equal(agent.act_batch(OBSERVATIONS, greedy=True), expected)
    assert agent.act(OBSERVATIONS[0], greedy=True) == expected[0]


def test_drawn_actions_follow_the_policy() -> None:
    """A policy that is sure draws the same action; one that is not draws them all."""
    agent = abc_agent(start=5)
    observation = np.broadcast_to(OBSERVATIONS[0], (100, 3))
    assert set(agent.act_batch(observation)) == {5, 6, 7}
    agent.model.get_layer("policy_output").bias.assign([0.0, 200.0, 0.0])
    assert set(agent.act_batch(observation)) == {6}
    assert agent.action_space.contains(agent.act(observation[0]))


def test_draws_are_a_function_of_the_seed() -> None:
    """The same for the same seed, call by call; 0 is a seed; calls differ."""
    first, again, other = (abc_agent(seed=0) for _ in range(3))
    other = A3CAgent(other.model, other.observation_space, other.action_space, seed=1)
    drawn = [[agent.act_batch(OBSERVATIONS) for _ in range(2)] for agent in (first, again, other)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0][0] != drawn[0][1]).any()
    assert (drawn[0][0] != drawn[2][0]).any()


def test_observations_of_another_shape() -> None:
    """A message that names both shapes."""
    with pytest.raises(ValueError, match=r"\(4,\).*\(3,\)"):
        abc_agent().act(np.zeros(4))


def test_acting_line_by_line(eagerly: None) -> None:
    """The same actions as compiled."""
    drawn = abc_agent().act_batch(OBSERVATIONS)
    tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(drawn, abc_agent().act_batch(OBSERVATIONS))


def test_clone_has_its_own_nets() -> None:
    """The same weights and hyper-parameters, but changes stay in one of the two."""
    agent = abc_agent(gamma=0.5)
    clone = agent.clone()
    assert clone.hyperparameters == agent.hyperparameters
    for ours, theirs in zip(agent.variables, clone.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        theirs.assign(theirs + 1.0)
        assert (ours.numpy() != theirs.numpy()).all()


# Loss ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_policy_term_does_not_reach_the_value_head(shared_trunk: bool) -> None:
    """Nor does the entropy: without a value term, the value net's gradients are zero."""
    env = ABCEnv()
    model = build_actor_critic(
        env.observation_space, env.action_space, (4,), shared_trunk=shared_trunk
    )
    settings = A3CHyperparameters(value_coefficient=0.0)
    agent = A3CAgent(model, env.observation_space, env.action_space, hyperparameters=settings)
    of_value_net = [v for v in agent.trainable_variables if v.path.startswith("value")]
    with tf.GradientTape() as tape:
        loss, _ = agent.loss(rollout(), 0.01)
    gradients = tape.gradient(loss, agent.trainable_variables, unconnected_gradients="zero")
    for variable, gradient in zip(agent.trainable_variables, gradients, strict=True):
        ours = any(variable is v for v in of_value_net)
        assert (not gradient.numpy().any()) == ours, variable.path


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_uses_the_hyperparameters(reduction: str) -> None:
    """The total is made of the terms with their weights; the sum is the mean times 4 steps."""
    agent = abc_agent(value_coefficient=0.25, reduction=reduction)
    total, statistics = agent.loss(rollout(), 0.5)
    policy, value, entropy, logged, _ = statistics
    assert agent.statistics[:4] == ("loss/policy", "loss/value", "loss/entropy", "loss/total")
    assert float(total) == float(logged) == pytest.approx(
        float(policy + 0.25 * value - 0.5 * entropy)
    )  # fmt: skip
    as_sum, _ = abc_agent(value_coefficient=0.25, reduction="sum").loss(rollout(), 0.5)
    assert float(as_sum) == pytest.approx(float(total) * {"mean": 4.0, "sum": 1.0}[reduction])


@pytest.mark.parametrize("changed", [{"gamma": 0.5}, {"gae_lambda": 0.5}])
def test_discounts_reach_the_returns(changed: dict[str, Any]) -> None:
    """The discount factor and lambda are the agent's."""
    steps = rollout()._replace(terminated=tf.zeros((3, 2)), truncated=tf.zeros((3, 2)))
    losses = [abc_agent(**settings).loss(steps, 0.0)[0] for settings in ({}, changed)]
    assert abs(float(losses[0] - losses[1])) > 1e-3


# Saving -------------------------------------------------------------------------------------


def test_acts_the_same_in_a_new_process(tmp_path: Path) -> None:
    """What was saved acts at once, greedily and by the seed, and the process writes nothing."""
    spaces = (
        gym.spaces.Discrete(3, start=5),
        gym.spaces.MultiDiscrete([3, 2], start=[5, -1]),
        gym.spaces.MultiBinary([2, 2]),
        gym.spaces.Box(-1.0, 2.0, (2,)),
    )
    np.save(tmp_path / "observations.npy", OBSERVATIONS)
    expected: dict[str, Any] = {}
    kinds: list[tuple[gym.Space, dict[str, Any]]] = [(space, {}) for space in spaces]
    kinds.append((gym.spaces.Discrete(3), STATEFUL))
    for number, (space, options) in enumerate(kinds):
        env = ABCEnv()
        env.action_space = space
        agent = trained(make_agent(env, hidden_sizes=(4,), **options))
        name = str(tmp_path / str(number))
        agent.save(name)
        expected[name] = [
            agent.act_batch(OBSERVATIONS),
            agent.act_batch(OBSERVATIONS, greedy=True),
        ]
    done = subprocess.run(
        [sys.executable, "-c", ACT, str(tmp_path / "observations.npy"), *expected],
        env=os.environ | {"PYTHONPATH": str(Path(a3c_tf.__path__[0]).parent)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name, actions in expected.items():
        np.testing.assert_array_equal(np.load(f"{name}.npy"), actions)


def test_everything_comes_back(tmp_path: Path) -> None:
    """Weights, spaces, hyper-parameters and the optimizer's settings."""
    optimizer = keras.optimizers.Adam(0.125, beta_1=0.5)
    agent = abc_agent(
        start=5,
        optimizer=optimizer,
        gamma=0.5,
        gae_lambda=0.75,
        learning_rate=Schedule(1.0, 0.0, 1000),
        entropy_coefficient=Schedule(0.5, 0.25, 2000),
        value_coefficient=2.0,
        max_gradient_norm=0.0,
        reduction="sum",
    )
    agent.save(tmp_path / "not" / "there" / "yet")
    loaded = load_agent(tmp_path / "not" / "there" / "yet")
    for ours, theirs in zip(agent.variables, loaded.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert loaded.observation_space == agent.observation_space
    assert loaded.action_space == agent.action_space
    assert loaded.hyperparameters == agent.hyperparameters
    assert loaded.optimizer.get_config() == optimizer.get_config()


def test_image_agent_comes_back(tmp_path: Path) -> None:
    """Bytes as observations."""
    space, actions = gym.spaces.Box(0, 255, (4, 4, 1), np.uint8), gym.spaces.Discrete(2)
    agent = trained(A3CAgent(build_actor_critic(space, actions, (4,)), space, actions))
    agent.save(tmp_path)
    images = np.random.default_rng(3).integers(256, size=(9, 4, 4, 1), dtype=np.uint8)
    np.testing.assert_array_equal(load_agent(tmp_path).policy(images), agent.policy(images))


def test_save_replaces(tmp_path: Path) -> None:
    """A directory that holds an agent holds the new one afterwards."""
    abc_agent(gamma=0.5).save(tmp_path)
    abc_agent(gamma=0.75).save(tmp_path)
    assert load_agent(tmp_path).hyperparameters.gamma == 0.75


def test_no_agent(tmp_path: Path) -> None:
    """The message names the directory."""
    with pytest.raises(FileNotFoundError, match=tmp_path.name):
        load_agent(tmp_path)


def cut(path: Path) -> None:
    """Loses a file's second half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def turn_bytes(path: Path) -> None:
    """Changes some bytes in the middle of a file."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    for position in range(middle, middle + 64):
        content[position] ^= 0xFF
    path.write_bytes(content)


def edit(**changes: Any) -> Callable[[Path], None]:
    """Changes entries of a JSON object; None removes one."""

    def change(path: Path) -> None:
        entries = json.loads(path.read_text()) | changes
        kept = {name: entry for name, entry in entries.items() if entry is not None}
        path.write_text(json.dumps(kept))

    return change


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("agent.json", cut),
        ("agent.json", turn_bytes),
        ("agent.json", lambda path: path.write_text("")),
        ("agent.json", lambda path: path.write_text("[1]")),
        ("agent.json", edit(format=1)),
        ("agent.json", edit(format=None)),
        ("agent.json", edit(kind="Nobody")),
        ("agent.json", edit(nets=["../model"])),
        ("agent.json", edit(hyperparameters={"gamma": 1.0})),
        ("agent.json", edit(hyperparameters=[])),
        ("agent.json", edit(action_space={"type": "Sphere"})),
        ("agent.json", edit(observation_space=[])),
        ("agent.json", edit(optimizer={"class_name": "Nothing"})),
        ("agent.json", edit(optimizer=5)),
        ("agent.json", edit(optimizer=None)),
        ("model.keras", cut),
        ("model.keras", turn_bytes),
        ("model.keras", lambda path: path.write_bytes(b"")),
        ("model.keras", Path.unlink),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    """One kind of error, whatever is wrong, that names the directory."""
    abc_agent().save(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(ValueError, match=f"{tmp_path.name} cannot be loaded"):
        load_agent(tmp_path)


def test_loss_knows_the_mask() -> None:
    """Two of three actions are allowed: the entropy that is learned from is ln 2."""
    space = gym.spaces.Dict(seen=gym.spaces.Box(0, 1, (2,)), action_mask=gym.spaces.MultiBinary(3))
    actions = gym.spaces.Discrete(3)
    agent = A3CAgent(build_actor_critic(space, actions, (4,)), space, actions)
    steps, envs = 3, 2
    masks = np.tile(np.float32([1, 0, 1]), (steps + 1, envs, 1))
    masks[-1] = [1, 0, 0]  # what bootstraps is not acted on
    plain = rollout_of(
        np.ones((steps + 1, envs, 2), np.float32),
        np.zeros((steps, envs), np.int64),
        *np.zeros((3, steps, envs), np.float32),
        np.ones((steps, envs), np.float32),
    )
    masked = plain._replace(observations=[*plain.observations, tf.constant(masks)])
    statistics = dict(zip(agent.statistics, agent.loss(masked, 0.0)[1], strict=True))
    np.testing.assert_allclose(statistics["loss/entropy"], np.log(2.0), atol=1e-3)
