"""Nets that users bring along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import a3c_tf
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.loading import load_agent
from a3c_tf.quiet import keras, tf
from a3c_tf.training import train_agent_async
from tests.envs import ABCEnv

SPACE = gym.spaces.Box(0.0, 1.0, (3,))
LETTERS = np.eye(3, dtype=np.float32)


@keras.saving.register_keras_serializable("tests")
class Policy(keras.Model):
    """Logits by way of a layer of its own."""

    def __init__(self, actions: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.actions = actions
        self.twice = Twice()
        self.logits = keras.layers.Dense(actions)

    def call(self, observations: Any) -> Any:
        """[B, ...] to [B, actions]."""
        return self.logits(self.twice(observations))

    def get_config(self) -> dict[str, Any]:
        """What it takes to make it again."""
        return {**super().get_config(), "actions": self.actions}


@keras.saving.register_keras_serializable("tests")
class Twice(keras.layers.Layer):
    """Doubles."""

    def call(self, inputs: Any) -> Any:
        """Twice as much."""
        return 2.0 * inputs


def value_net(units: int = 1) -> keras.Model:
    """A small one."""
    return keras.Sequential(
        [keras.layers.Dense(8, "tanh"), keras.layers.Dense(units)], name="worth"
    )


def functional(units: int, name: str) -> keras.Model:
    """One dense layer."""
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(units)(inputs), name=name)


def both(observation_space: gym.Space, action_space: gym.Space) -> Any:
    """A function from the spaces to a pair."""
    assert observation_space == SPACE
    return Policy(int(action_space.n)), value_net()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "model",
    [
        lambda o, a: (Policy(3), value_net()),
        lambda o, a: (functional(3, "p"), functional(1, "v")),
        both,
    ],
    ids=["subclassed", "functional", "function"],
)
def test_pair(tmp_path: Path, model: Any) -> None:
    """Learns the ABC, and comes back."""
    env = ABCEnv(3)
    agent = A3CAgent(model, env.observation_space, env.action_space)
    assert set(agent.custom_objects().values()) <= {Policy, Twice}
    agent.change(learning_rate=0.02)
    train_agent_async(
        tmp_path / "run",
        2,
        lambda index, test: ABCEnv(3),
        agent=agent,
        steps=60_000,
        eval_interval=2000,
        successful_score=ABCEnv.OPTIMUM,
        envs_per_worker=8,
    )
    loaded = load_agent(tmp_path / "run" / "successful")
    assert list(loaded.act_batch(LETTERS, greedy=True)) == [0, 1, 2]


def test_clone_is_independent() -> None:
    """Same weights, other variables."""
    agent = A3CAgent((Policy(3), value_net()), SPACE, gym.spaces.Discrete(3))
    clone = agent.clone()
    for ours, theirs in zip(agent.variables, clone.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours is not theirs
    assert len({id(v) for v in agent.variables}) == len(agent.variables) == 6


def recurrent_counter() -> keras.Model:
    """Its state counts the steps of an episode; logits and value are the count."""
    inputs = keras.Input((3,)), keras.Input((1,), name="state"), keras.Input((), name="starts")
    output, state = Counter()(inputs)
    values = keras.layers.Reshape(())(keras.layers.Dense(1, use_bias=False)(output))
    logits = keras.layers.Dense(3, kernel_initializer="ones")(output)
    return keras.Model(list(inputs), [logits, values, state])


@keras.saving.register_keras_serializable("tests")
class Counter(keras.layers.Layer):
    """Counts rows of a time-major batch, from 1 where an episode starts."""

    def call(self, inputs: Any) -> Any:
        """([T x K, 3], [K, 1], [T x K]) to ([T x K, 1], [K, 1])."""
        _, state, starts = inputs
        counts = []
        for start in tf.unstack(tf.reshape(starts, [-1, state.shape[0], 1])):
            state = state * (1.0 - start) + 1.0
            counts.append(state)
        return tf.concat(counts, 0), state

    def compute_output_shape(self, input_shape: Any) -> Any:
        """For the time when T and K are not known."""
        return (None, 1), (None, 1)


def test_recurrent_model() -> None:
    """What is documented for a model of one's own holds for the least one."""
    agent = A3CAgent(recurrent_counter(), SPACE, gym.spaces.Discrete(3))
    assert agent.state_size == 1
    for start, count in ((True, 1), (False, 2), (False, 3), (True, 1)):
        agent.act(LETTERS[0], start=start)
        assert float(agent._state[0, 0]) == count


@pytest.mark.parametrize(
    ("policy", "value", "words"),
    [
        (functional(4, "wide"), functional(1, "v"), ("(None, 4)", "(None, 3)", "Discrete(3)")),
        (functional(3, "p"), functional(2, "pair"), ("(None, 2)", "(None,)")),
    ],
)
def test_other_outputs(policy: Any, value: Any, words: tuple[str, ...]) -> None:
    """One line with the shapes that they have, and those needed."""
    with pytest.raises(ValueError, match="outputs of the shapes") as raised:
        A3CAgent((policy, value), SPACE, gym.spaces.Discrete(3))
    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


def test_means_without_deviations() -> None:
    """A Box action needs two outputs a number."""
    box = gym.spaces.Box(-1.0, 1.0, (3,))
    with pytest.raises(ValueError, match=r"\(None, 3\).*\(None, 6\)"):
        A3CAgent((functional(3, "p"), functional(1, "v")), SPACE, box)


class NoConfig(keras.Model):
    """Cannot be copied: its constructor takes a function, and it has no get_config."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.dense = keras.layers.Dense(3)

    def call(self, observations: Any) -> Any:
        """[B, 3] to [B, 3]."""
        return self.function(self.dense(observations))


def test_net_that_cannot_be_copied() -> None:
    """One line, before any worker exists."""
    agent = A3CAgent((NoConfig(lambda x: x), value_net()), SPACE, gym.spaces.Discrete(3))
    with pytest.raises(ValueError, match=r"'model' cannot be copied.*get_config") as raised:
        agent.clone()
    assert "\n" not in str(raised.value)


SCRIPT = """
import sys
import gymnasium as gym
import numpy as np
from a3c_tf import A3CAgent, load_agent, train_agent_async
from a3c_tf.quiet import keras
from tests.envs import ABCEnv

class Mine(keras.layers.Layer):
    def call(self, inputs):
        return 3.0 * inputs

def make_env(index, test):
    return ABCEnv(3)

if __name__ == "__main__":
    env = make_env(0, True)
    policy = keras.Sequential([Mine(), keras.layers.Dense(3)])
    value = keras.Sequential([Mine(), keras.layers.Dense(1)])
    agent = A3CAgent((policy, value), env.observation_space, env.action_space)
    train_agent_async("run", 1, make_env, agent=agent, steps=500, eval_interval=None,
                      backend="processes")
    letters = np.eye(3, dtype=np.float32)
    import glob
    (directory,) = glob.glob("run/*_finish")
    try:
        load_agent(directory)
    except ValueError as error:
        assert "custom_objects" in str(error), error
    agent = train_agent_async("run", 1, make_env, agent=agent, steps=900, eval_interval=None,
                              backend="processes", resume=True)
    (directory,) = set(glob.glob("run/*_finish")) - {directory}
    loaded = load_agent(directory, custom_objects={"Mine": Mine})
    assert list(loaded.act_batch(letters)) == list(agent.act_batch(letters))
"""


def test_classes_of_the_script(tmp_path: Path) -> None:
    """Worker processes know a layer that the user's own script defines and does not register."""
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(a3c_tf.__path__[0]).parent
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
