"""Spaces as JSON."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest

from a3c_tf.envs.spaces import space_from_json, space_to_json

SPACES = [
    gym.spaces.Discrete(4),
    gym.spaces.Discrete(3, start=-1),
    gym.spaces.MultiDiscrete([3, 2]),
    gym.spaces.MultiDiscrete([[3, 2], [1, 4]], dtype=np.int32, start=[[0, -5], [1, 2]]),
    gym.spaces.MultiBinary(3),
    gym.spaces.MultiBinary([2, 3]),
    gym.spaces.Box(0, 255, (4, 84, 84), np.uint8),
    gym.spaces.Box(-np.inf, np.inf, (3,)),
    gym.spaces.Box(np.array([-1.5, -np.inf], np.float32), np.array([0.1, np.inf], np.float32)),
    gym.spaces.Box(0.1, np.pi, (2, 1), np.float64),
    gym.spaces.Box(-1.0, 1.0, ()),
    gym.spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    gym.spaces.Box(np.zeros(2, np.uint64), np.array([1, 2**64 - 1], np.uint64), dtype=np.uint64),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_round_trip(space: gym.Space) -> None:
    """A space comes back from its JSON as it was, to the last bit of its bounds."""
    back = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert back == space
    assert back.dtype == space.dtype


def test_image_is_short() -> None:
    """Bounds that are all equal are one number."""
    assert len(json.dumps(space_to_json(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)))) < 120


def test_unknown_space() -> None:
    """The message names the space, or the kind that was read."""
    with pytest.raises(ValueError, match="Text"):
        space_to_json(gym.spaces.Text(3))
    with pytest.raises(ValueError, match="Sphere"):
        space_from_json({"type": "Sphere"})
