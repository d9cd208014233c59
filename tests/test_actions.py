"""How a policy acts in an action space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from a3c_tf.actions import MAX_LOG_STD, MIN_LOG_STD, actions_for
from a3c_tf.quiet import tf

SEED = tf.constant([0, 0], tf.int64)
HALF_BOUNDED = np.array([[0.0, -np.inf], [np.inf, 1.0]], np.float32)


@pytest.mark.parametrize(
    ("space", "output_size"),
    [
        (gym.spaces.Discrete(3), 3),
        (gym.spaces.Discrete(3, start=5), 3),
        (gym.spaces.Discrete(3, start=-2), 3),
        (gym.spaces.MultiDiscrete([3, 1, 4]), 8),
        (gym.spaces.MultiDiscrete([3, 2], start=[5, -1]), 5),
        (gym.spaces.MultiDiscrete([[3, 2], [2, 2]], dtype=np.int32), 9),
        (gym.spaces.MultiBinary(4), 4),
        (gym.spaces.MultiBinary([2, 3]), 6),
        (gym.spaces.Box(-2.0, 2.0, (1,)), 2),
        (gym.spaces.Box(np.array([0.0, -5.0]), np.array([2.0, 10.0]), dtype=np.float64), 4),
        (gym.spaces.Box(-np.inf, np.inf, (2, 3)), 12),
        (gym.spaces.Box(HALF_BOUNDED[0], HALF_BOUNDED[1]), 4),
    ],
    ids=str,
)
def test_drawn_actions_lie_in_the_space(space: gym.Space, output_size: int) -> None:
    """In its shape and dtype, for outputs of any size, with leading dimensions."""
    actions = actions_for(space)
    assert actions.output_size == output_size
    outputs = np.random.default_rng(0).normal(size=(20, 5, output_size)) * 10
    drawn = actions.distribution(tf.constant(outputs, tf.float32)).sample(
        actions.noise([20, 5], SEED)
    )
    taken = actions.to_environment(drawn).numpy()
    assert taken.shape == (20, 5, *space.shape)
    assert taken.dtype == space.dtype
    each = list(taken.reshape(-1, *space.shape))
    assert all(space.contains(action) for action in each)
    assert len({action.tobytes() for action in each}) > 1


@pytest.mark.parametrize("start", [0, -2, 5])
def test_discrete_actions(start: int) -> None:
    """The net counts from 0, the environment from `start`."""
    actions = actions_for(gym.spaces.Discrete(3, start=start))
    np.testing.assert_array_equal(
        actions.to_environment(tf.constant([0, 2], tf.int64)), [start, start + 2]
    )


def test_starts_of_several_choices() -> None:
    """Each choice has its own."""
    actions = actions_for(gym.spaces.MultiDiscrete([3, 2], start=[5, -1]))
    np.testing.assert_array_equal(
        actions.to_environment(tf.constant([[2, 0]], tf.int64)), [[7, -1]]
    )


def test_box_with_bounds() -> None:
    """-1, 0 and 1 are the lower bound, the middle and the upper bound; beyond, it is clipped."""
    space = gym.spaces.Box(np.array([0.0, -5.0]), np.array([2.0, 10.0]), dtype=np.float64)
    taken = actions_for(space).to_environment(tf.constant([[-1.0, 1.0], [0.0, 0.0], [-9.0, 9.0]]))
    np.testing.assert_allclose(taken, [[0.0, 10.0], [1.0, 2.5], [0.0, 10.0]])


def test_box_without_bounds() -> None:
    """The numbers are taken as they were drawn."""
    taken = actions_for(gym.spaces.Box(-np.inf, np.inf, (1,))).to_environment(tf.constant([[1e6]]))
    np.testing.assert_allclose(taken, [[1e6]])


def test_log_probability_is_of_what_was_drawn() -> None:
    """Not of what the environment got: two draws beyond the bound differ in it."""
    actions = actions_for(gym.spaces.Box(-1.0, 1.0, (1,)))
    distribution = actions.distribution(tf.zeros([2, 2]))
    drawn = tf.constant([[3.0], [4.0]])
    np.testing.assert_array_equal(actions.to_environment(drawn), [[1.0], [1.0]])
    first, second = distribution.log_prob(drawn).numpy()
    assert first > second


@pytest.mark.parametrize(("output", "limit"), [(-1e6, MIN_LOG_STD), (1e6, MAX_LOG_STD)])
def test_standard_deviation_has_limits(output: float, limit: float) -> None:
    """However large the net's output; and near 0 the output moves it one to one."""
    actions = actions_for(gym.spaces.Box(-1.0, 1.0, (1,)))
    drawn = actions.distribution(tf.constant([[0.0, output]])).sample(tf.constant([[1.0]]))
    assert float(drawn[0, 0]) == pytest.approx(np.exp(limit), rel=1e-4)
    with tf.GradientTape() as tape:
        outputs = tf.zeros([1, 2])
        tape.watch(outputs)
        entropy = actions.distribution(outputs).entropy()
    np.testing.assert_allclose(tape.gradient(entropy, outputs), [[0.0, 1.0]])


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Text(3),
        gym.spaces.Dict(a=gym.spaces.Discrete(2)),
        gym.spaces.Tuple([gym.spaces.Discrete(2)]),
        gym.spaces.Box(0, 5, (2,), np.int64),
    ],
    ids=lambda space: type(space).__name__,
)
def test_unsupported_space(space: Any) -> None:
    """The message names the space."""
    with pytest.raises(ValueError, match=type(space).__name__):
        actions_for(space)


# Masks --------------------------------------------------------------------------------------------

LOGITS = np.float32([[2.0, -1.0, 0.5, 3.0], [1e4, -1e4, -9999.0, 1e4]])
MASK = np.int8([[1, 0, 1, 1], [0, 1, 1, 0]])


def test_masked_choice_is_one_among_the_allowed() -> None:
    """Log-probabilities, entropy and gradients are those of the smaller distribution."""
    actions = actions_for(gym.spaces.Discrete(4))
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        distribution = actions.distribution(logits, tf.constant(MASK))
        total = distribution.log_prob(tf.constant([2, 2], tf.int64)) + distribution.entropy()
    gradient = tape.gradient(total, logits).numpy()
    for row, allowed in enumerate((MASK > 0).tolist()):
        left = tf.constant(LOGITS[row][allowed])
        with tf.GradientTape() as tape:
            tape.watch(left)
            smaller = actions_for(gym.spaces.Discrete(len(left))).distribution(left)
            index = int(np.flatnonzero(allowed).tolist().index(2))
            expected = smaller.log_prob(tf.constant(index, tf.int64)) + smaller.entropy()
        np.testing.assert_allclose(total[row], expected, rtol=1e-5)
        np.testing.assert_allclose(gradient[row][allowed], tape.gradient(expected, left), atol=1e-6)
        np.testing.assert_array_equal(gradient[row][~np.array(allowed)], 0.0)


def test_forbidden_actions_are_not_drawn() -> None:
    """Their probability is exactly zero, however much the net likes them."""
    actions = actions_for(gym.spaces.Discrete(4, start=3))
    outputs = tf.constant(np.tile(LOGITS, (5000, 1, 1)))
    distribution = actions.distribution(outputs, tf.constant(np.tile(MASK, (5000, 1, 1))))
    drawn = distribution.sample(actions.noise([5000, 2], SEED)).numpy()
    assert set(drawn[:, 0]) == {0, 2, 3}
    assert set(drawn[:, 1]) == {1, 2}
    assert distribution.mode().numpy()[0].tolist() == [3, 2]
    probabilities = np.exp(distribution.log_probabilities[0])
    np.testing.assert_array_equal(probabilities[MASK == 0], 0.0)


def test_masks_of_several_choices() -> None:
    """One after the other."""
    actions = actions_for(gym.spaces.MultiDiscrete([2, 3]))
    mask = tf.constant([[0, 1, 1, 0, 1]], tf.float32)
    distribution = actions.distribution(tf.zeros([1, 5]), mask)
    drawn = distribution.sample(actions.noise([1], SEED))
    assert drawn.numpy()[0, 0] == 1
    np.testing.assert_allclose(distribution.entropy(), [np.log(2.0)], rtol=1e-6)
    np.testing.assert_allclose(
        distribution.log_prob(tf.constant([[1, 2]], tf.int64)), [-np.log(2.0)], rtol=1e-6
    )


def test_everything_forbidden() -> None:
    """As in a final observation: finite, as if everything were allowed."""
    distribution = actions_for(gym.spaces.Discrete(3)).distribution(
        tf.constant([[1.0, 2.0, 3.0]]), tf.zeros([1, 3])
    )
    np.testing.assert_allclose(distribution.entropy(), [np.log(3.0)], rtol=1e-6)
