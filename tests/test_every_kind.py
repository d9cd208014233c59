"""What holds for every kind of space and net: its graph, and that a saved agent acts the same."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array

import a3c_tf
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.base import Agent
from a3c_tf.agents.n_step_q import NStepQAgent
from a3c_tf.networks import build_action_value, build_actor_critic
from a3c_tf.worker import Worker
from tests.helpers import RecordingConnection

NUMBERS = Box(-2.0, 2.0, (3,))
IMAGE = Box(0, 255, (36, 36, 3), np.uint8)
NESTED = Dict({"seen": IMAGE, "rest": Tuple((Discrete(3, start=1), MultiBinary(2), NUMBERS))})
MASK_3 = MultiBinary(3)

Kind = tuple[gym.Space, gym.Space, dict[str, Any]]
KINDS: dict[str, Kind] = {
    "discrete": (NUMBERS, Discrete(3, start=5), {}),
    "normalize": (NUMBERS, Discrete(3), {"normalize": True}),
    "lstm": (Discrete(4, start=2), MultiDiscrete([3, 2], start=[5, -1]), {"lstm": True}),
    "lstm-shared": (
        MultiDiscrete([2, 3]),
        MultiBinary([2, 2]),
        {"lstm": True, "shared_trunk": True},
    ),
    "box": (
        MultiBinary(3),
        Box(np.array([0.0, -5.0]), np.array([2.0, 10.0]), dtype=np.float64),
        {},
    ),
    "box-free": (
        Box(-np.inf, np.inf, (3, 2), np.float64),
        Box(-np.inf, np.inf, (2,), np.float64),
        {"state_dependent_std": True},
    ),
    "paper_cnn": (Box(0, 255, (84, 84, 4), np.uint8), Discrete(6), {"network": "paper_cnn"}),
    "nature_cnn": (
        Box(0, 255, (2, 36, 36), np.uint8),
        Discrete(4),
        {"network": "nature_cnn", "normalize": True, "shared_trunk": True},
    ),
    "impala": (IMAGE, Discrete(2), {"network": "impala", "lstm": True}),
    "nested": (NESTED, Discrete(2), {"network": "paper_cnn", "normalize": True}),
    "tuple": (Tuple((NUMBERS, Discrete(2))), Discrete(2), {"normalize": True, "lstm": True}),
    "masked": (Dict({"here": NUMBERS, "action_mask": MASK_3}), Discrete(3, start=5), {}),
    "masked-several": (
        Dict({"a": NUMBERS, "b": Discrete(2), "action_mask": MASK_3}),
        MultiDiscrete([2, 1]),
        {"lstm": True, "normalize": True},
    ),
}
Q_KINDS = "discrete", "nested", "masked"

ACT = """
import pickle, sys
from a3c_tf.agents.loading import load_agent
observations = pickle.load(open(sys.argv[1], "rb"))
actions = {}
for path in sys.argv[2:]:
    agent, seen = load_agent(path), observations[path]
    actions[path] = [
        agent.act(one, greedy, start=number % 5 == 0)
        for greedy in (True, False)
        for number, one in enumerate(seen)
    ]
pickle.dump(actions, open(sys.argv[1], "wb"))
"""


def make(name: str, algorithm: type[Agent] = A3CAgent) -> Agent:
    """A small agent of one kind, with weights and statistics that are not those of a new one."""
    observations, actions, options = KINDS[name]
    agent: Agent
    if algorithm is NStepQAgent:
        network = options.get("network", "mlp")
        net = build_action_value(observations, actions, (8,), network=network)
        agent = NStepQAgent(net, observations, actions)
    else:
        net = build_actor_critic(observations, actions, hidden_sizes=(8,), **options)
        agent = A3CAgent(net, observations, actions)
    for number, weight in enumerate(agent.weights):
        change = np.sin(number + np.arange(weight.shape.num_elements())).reshape(weight.shape)
        statistic = "_normal/" in weight.name
        weight.assign(weight + np.square(change) if statistic else weight * (1.0 + change / 5))
    for head in ("policy_output", "action_values"):
        for layer in agent.model.layers:  # type: ignore[attr-defined]
            if layer.name == head:  # else all actions would be as good as equal
                layer.kernel.assign(layer.kernel * 100.0)
                layer.bias.assign(layer.bias * 0.0)
    return agent


def look(space: gym.Space, count: int) -> list[Any]:
    """Observations; each allows an action for every choice, and images are not all alike."""
    space.seed(0)
    seen = [space.sample() for _ in range(count)]
    for number, one in enumerate(seen):
        image = one["seen"] if space is NESTED else one
        if isinstance(image, np.ndarray) and image.dtype == np.uint8:
            image[:, : number % 3 * 12] //= 2 + number
        if isinstance(one, dict) and "action_mask" in one:
            one["action_mask"] |= np.array([0, 1, 1], np.int8)
    return seen


def test_acts_the_same_in_a_new_process(tmp_path: Path) -> None:
    """Greedily and by the seed, over episodes, whatever spaces and nets it is for."""
    made = [(name, A3CAgent) for name in KINDS] + [(name, NStepQAgent) for name in Q_KINDS]
    expected, observations = {}, {}
    for name, algorithm in made:
        agent = make(name, algorithm)
        path = str(tmp_path / f"{name}-{algorithm.__name__}")
        agent.save(path)
        seen = observations[path] = look(KINDS[name][0], 12)
        expected[path] = [
            agent.act(one, greedy, start=number % 5 == 0)
            for greedy in (True, False)
            for number, one in enumerate(seen)
        ]
        assert all(agent.action_space.contains(action) for action in expected[path])
        assert len({str(action) for action in expected[path]}) > 1
    file = tmp_path / "data.pickle"
    file.write_bytes(pickle.dumps(observations))
    done = subprocess.run(
        [sys.executable, "-c", ACT, str(file), *expected],
        env=os.environ | {"PYTHONPATH": str(Path(a3c_tf.__path__[0]).parent)},
        capture_output=True,
        text=True,
    )
    # TensorFlow tries to fuse operations of impala's residual blocks, cannot, and says so.
    said = [line for line in done.stderr.splitlines() if "remapper failed" not in line]
    assert (done.returncode, done.stdout, said) == (0, "", [])
    actions = pickle.loads(file.read_bytes())
    for path, ours in expected.items():
        for one, other in zip(ours, actions[path], strict=True):
            np.testing.assert_array_equal(one, other, err_msg=path)


@pytest.mark.parametrize("name", KINDS)
def test_iteration_needs_no_thread_pool(name: str) -> None:
    """No net brings a loop or a branch into the graph: workers would queue in TensorFlow's pool."""
    worker = Worker(0, make(name), RecordingConnection(), t_max=2, envs=2)
    assert worker._iterate._executor == "SINGLE_THREADED_EXECUTOR"


@pytest.mark.parametrize("name", KINDS)
def test_many_at_once(name: str) -> None:
    """K observations together get the actions that each one gets alone."""
    agent, alone = make(name), make(name)
    seen = look(agent.observation_space, 5)
    space = agent.observation_space
    together = concatenate(space, seen, create_empty_array(space, len(seen)))
    starts = [True] * len(seen)
    actions = agent.act_batch(together, greedy=True, starts=starts)
    each = [alone.act(one, greedy=True, start=True) for one in seen]
    np.testing.assert_allclose(actions, np.stack(each), rtol=1e-5)
