"""Returns and advantages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from a3c_tf.quiet import tf
from a3c_tf.returns import advantages_and_returns

Array = npt.NDArray[Any]


def column(*numbers: float) -> Array:
    """A [T, 1] array: one environment."""
    return np.array(numbers, np.float32)[:, None]


def flag_at(step: int, length: int) -> Array:
    """A [T, 1] flag that is set at one step."""
    return np.eye(length, dtype=np.float32)[:, step : step + 1]


def targets(
    rewards: Array, values: Array, terminated: Array, truncated: Array, gamma: float
) -> Array:
    """The n-step returns of one environment, [T]."""
    _, returns = advantages_and_returns(rewards, values, terminated, truncated, gamma)
    return returns.numpy()[:, 0]


def by_definition(
    rewards: Array,
    values: Array,
    terminated: Array,
    truncated: Array,
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Advantages as the sum of equation 16, in float64, for every step anew; [T, K]."""
    advantages = np.zeros(rewards.shape)
    for t, k in np.ndindex(rewards.shape):
        for i in range(t, len(rewards)):
            bootstrap = 0.0 if terminated[i, k] else float(values[i + 1, k])
            delta = float(rewards[i, k]) + gamma * bootstrap - float(values[i, k])
            advantages[t, k] += (gamma * gae_lambda) ** (i - t) * delta
            if terminated[i, k] or truncated[i, k]:
                break
    return advantages


def test_truncation_bootstraps_from_the_final_observation() -> None:
    """Reward 1, truncated at step 5, gamma 0.9, V = 7 everywhere: the last target is 7.3."""
    never, last = np.zeros((5, 1), np.float32), flag_at(4, 5)
    actual = targets(column(*[1.0] * 5), column(*[7.0] * 6), never, last, 0.9)
    expected = [7.3]
    for _ in range(4):
        expected.insert(0, 1.0 + 0.9 * expected[0])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("also_truncated", [0.0, 1.0])
def test_termination_never_bootstraps(also_truncated: float) -> None:
    """The last target is the last reward alone; both flags set means terminated."""
    last = flag_at(4, 5)
    actual = targets(column(*[1.0] * 5), column(*[7.0] * 6), last, also_truncated * last, 0.9)
    assert actual[-1] == 1.0


@pytest.mark.parametrize("t_max", [1, 2, 4])
def test_reward_on_the_last_step_only(t_max: int) -> None:
    """Targets gamma^3, gamma^2, gamma, 1 whatever T, where V is right at the rollout's end."""
    gamma = 0.9
    expected = np.array([gamma**3, gamma**2, gamma, 1.0])
    rewards, values, terminated = column(0, 0, 0, 1), column(*expected, 50.0), flag_at(3, 4)
    actual = [
        targets(
            rewards[t : t + t_max],
            values[t : t + t_max + 1],
            terminated[t : t + t_max],
            np.zeros((t_max, 1), np.float32),
            gamma,
        )
        for t in range(0, 4, t_max)
    ]
    np.testing.assert_allclose(np.concatenate(actual), expected, rtol=1e-6)


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.5])
def test_nothing_crosses_the_end_of_an_episode(ending: str, gae_lambda: float) -> None:
    """What happens after an end changes nothing up to it, in that environment or another."""
    rng = np.random.default_rng(0)
    rewards, values = (rng.normal(size=(n, 2)).astype(np.float32) for n in (5, 6))
    end, never = np.zeros((2, 5, 2), np.float32)
    end[2, 0] = 1.0
    terminated, truncated = (end, never) if ending == "terminated" else (never, end)

    def advantages(rewards: Array, values: Array) -> Array:
        of_all = advantages_and_returns(rewards, values, terminated, truncated, 0.9, gae_lambda)
        return of_all[0].numpy()

    before = advantages(rewards, values)
    rewards[3:, 0] += 1000.0
    values[4:, 0] += 1000.0
    after = advantages(rewards, values)
    np.testing.assert_array_equal(before[:3, 0], after[:3, 0])
    np.testing.assert_array_equal(before[:, 1], after[:, 1])
    assert (before[3:, 0] != after[3:, 0]).all()


@pytest.mark.parametrize("gae_lambda", [1.0, 0.95, 0.0])
def test_equals_the_definition(gae_lambda: float) -> None:
    """Equation 16, on random numbers with ends of both kinds; returns are A + V."""
    rng = np.random.default_rng(1)
    rewards, values = (rng.normal(size=(n, 4)).astype(np.float32) for n in (7, 8))
    terminated, truncated = (rng.random((2, 7, 4)) < 0.2).astype(np.float32)
    advantages, returns = advantages_and_returns(
        rewards, values, terminated, truncated, 0.9, gae_lambda
    )
    expected = by_definition(rewards, values, terminated, truncated, 0.9, gae_lambda)
    np.testing.assert_allclose(advantages, expected, atol=1e-5)
    np.testing.assert_allclose(returns, expected + values[:-1], atol=1e-5)


def test_shapes_and_dtype() -> None:
    """[T, K] float32, both."""
    zeros = np.zeros((3, 2), np.float32)
    for result in advantages_and_returns(zeros, np.zeros((4, 2), np.float32), zeros, zeros, 0.9):
        assert result.shape == (3, 2)
        assert result.dtype == tf.float32


def test_no_gradient_flows_through_the_values() -> None:
    """Advantages and returns are constants for the value net."""
    zeros = np.zeros((3, 2), np.float32)
    values = tf.Variable(tf.ones((4, 2)))
    with tf.GradientTape(persistent=True) as tape:
        advantages, returns = advantages_and_returns(zeros, values, zeros, zeros, 0.9)
    assert tape.gradient(advantages, values) is None
    assert tape.gradient(returns, values) is None
