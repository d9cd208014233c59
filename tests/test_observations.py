"""How observations of every space reach the nets."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from a3c_tf.observations import Observations

IMAGE = spaces.Box(0, 255, (5, 4, 3), np.uint8)
NESTED = spaces.Dict(
    {
        "b": spaces.Box(-1.0, 1.0, (2,), np.float64),
        "a": spaces.Tuple((spaces.Discrete(3, start=7), spaces.MultiBinary([2, 2]))),
    }
)
MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(3), "board": spaces.Box(0.0, 1.0, (2,))})


def batch_of(space: gym.Space, observations: list[Any]) -> Any:
    """As a vector environment returns them."""
    empty: Any = create_empty_array(space, len(observations))
    return concatenate(space, observations, empty)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (IMAGE, np.full((5, 4, 3), 200, np.uint8), np.full((5, 4, 3), 200, np.uint8)),
        (spaces.Box(-9, 9, (2,), np.float64), np.array([0.1, 2.0]), np.float32([0.1, 2.0])),
        (spaces.Box(-9, 9, (), np.float32), np.float32(3.5), np.float32(3.5)),
        (spaces.Box(-9, 9, (2,), np.int64), np.array([-3, 4]), np.float32([-3, 4])),
        (spaces.Box(0, 1, (2,), np.bool_), np.array([True, False]), np.float32([1, 0])),
        (spaces.Discrete(4, start=-2), np.int64(-1), np.int32(1)),
        (
            spaces.MultiDiscrete([3, 5], start=[1, -1]),
            np.array([3, -1]),
            np.int32([2, 0]),
        ),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), np.float32([1, 0, 1])),
    ],
    ids=str,
)
def test_one_part(space: gym.Space, value: Any, expected: Any) -> None:
    """Bytes stay bytes, choices are counted from 0, everything else is float32; a new array."""
    observations = Observations(space)
    for arrays in (observations.arrays(np.stack([value, value]), 2), observations.single(value)):
        (array,) = arrays
        assert array.dtype == np.asarray(expected).dtype
        for row in array:
            np.testing.assert_array_equal(row, expected)
    batch = batch_of(space, [value, value])
    assert not np.shares_memory(observations.arrays(batch, 2)[0], batch)
    assert [(array.shape, array.dtype)] == observations.layout(1)


def test_nested() -> None:
    """Parts come in the space's order, and go back into its structure."""
    observations = Observations(NESTED)
    value = {"b": np.array([0.5, -0.5]), "a": (8, np.array([[1, 0], [0, 1]], np.int8))}
    assert [part.shape for part in observations.parts] == [(), (2, 2), (2,)]
    assert observations.net_names == ["a_0", "a_1", "b"]
    for arrays in (observations.single(value), observations.arrays(batch_of(NESTED, [value]), 1)):
        number, bits, floats = arrays
        np.testing.assert_array_equal(number, np.int32([1]))
        np.testing.assert_array_equal(bits, np.float32([[[1, 0], [0, 1]]]))
        np.testing.assert_array_equal(floats, np.float32([[0.5, -0.5]]))
    packed = observations.inputs(arrays)
    assert packed["b"] is floats
    assert packed["a"] == (number, bits)


def test_order_of_a_dict_that_is_not_sorted() -> None:
    """Values find their own parts by name."""
    space = spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Box(0.0, 1.0, (3,)))])
    observations = Observations(space)
    arrays = observations.single({"a": np.zeros(3, np.float32), "z": 1})
    assert [array.shape for array in arrays] == [(1,), (1, 3)]
    assert observations.inputs(arrays)["a"].shape == (1, 3)


def test_mask() -> None:
    """Not for the net, which sees what is left without a Dict around it."""
    observations = Observations(MASKED)
    arrays = observations.single({"board": np.float32([0.5, 1.0]), "action_mask": [1, 0, 1]})
    assert observations.masked
    assert observations.net_space == MASKED["board"]
    np.testing.assert_array_equal(observations.inputs(arrays), np.float32([[0.5, 1.0]]))
    mask = observations.mask(arrays)
    assert mask is not None
    np.testing.assert_array_equal(mask, np.float32([[1, 0, 1]]))
    assert Observations(NESTED).mask(observations.parts) is None


def test_mask_beside_several() -> None:
    """The net then sees a Dict without it."""
    space = spaces.Dict({**MASKED.spaces, "hand": spaces.Discrete(4)})
    observations = Observations(space)
    value = {"board": np.zeros(2, np.float32), "hand": 2, "action_mask": np.int8([0, 0, 1])}
    packed = observations.inputs(observations.single(value))
    assert list(packed) == ["board", "hand"]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (2,))]),
        spaces.Box(0.0, 1.0, (0,)),
    ],
    ids=lambda space: type(space).__name__,
)
@pytest.mark.parametrize("inside", [False, True])
def test_refused(space: gym.Space, inside: bool) -> None:
    """By name, in one line, also within a Dict."""
    whole = spaces.Dict({"fine": spaces.Discrete(2), "not": space}) if inside else space
    with pytest.raises(ValueError, match=type(space).__name__) as raised:
        Observations(whole)
    assert "\n" not in str(raised.value)
    assert "not supported" in str(raised.value)


def test_other_shape() -> None:
    """A message with both shapes."""
    with pytest.raises(ValueError, match=r"shape \(3,\), but its space says \(2,\)"):
        Observations(MASKED["board"]).single(np.zeros(3))
    with pytest.raises(ValueError, match=r"shape \(3, 2\), but its space says \(4, 2\)"):
        Observations(MASKED["board"]).arrays(np.zeros((3, 2)), 4)
