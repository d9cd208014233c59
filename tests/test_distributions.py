"""Distributions over actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from a3c_tf.distributions import Categorical, actions_for
from a3c_tf.quiet import tf

LOGITS = np.array([[0.0, 1.0, 2.0], [3.0, -3.0, 0.5]], np.float32)
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=-1, keepdims=True)


def seed(number: int) -> Any:
    """A seed as `noise` takes it."""
    return tf.constant([number, 0], tf.int64)


def draw(logits: Any, count: int) -> Any:
    """Actions drawn from one and the same logits, [count]."""
    repeated = np.broadcast_to(np.array(logits, np.float32), (count, len(logits)))
    return Categorical(repeated).sample(Categorical.noise(repeated.shape, seed(0))).numpy()


def test_log_probabilities_and_entropy() -> None:
    """The log-softmax's numbers, in nats, for any leading dimensions."""
    distribution = Categorical(LOGITS[None])
    log_probs = distribution.log_prob(tf.constant([[2, 1]], tf.int64))
    np.testing.assert_allclose(
        log_probs, np.log([[PROBABILITIES[0, 2], PROBABILITIES[1, 1]]]), rtol=1e-5
    )
    entropy = -(PROBABILITIES * np.log(PROBABILITIES)).sum(axis=-1)
    np.testing.assert_allclose(distribution.entropy(), entropy[None], rtol=1e-5)


def test_entropy_of_equal_probabilities() -> None:
    """It is log n, the most there is."""
    entropy = Categorical(np.full(6, 3.0, np.float32)).entropy()
    assert float(entropy) == pytest.approx(np.log(6))


def test_mode() -> None:
    """The most likely action."""
    np.testing.assert_array_equal(Categorical(LOGITS).mode(), [2, 0])


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_frequencies_of_drawn_actions(offset: float) -> None:
    """They are the probabilities, within five standard deviations, however large the logits."""
    count = 20_000
    frequencies = np.bincount(draw(LOGITS[0] + offset, count), minlength=3) / count
    deviation = np.sqrt(PROBABILITIES[0] * (1.0 - PROBABILITIES[0]) / count)
    assert (np.abs(frequencies - PROBABILITIES[0]) < 5.0 * deviation).all()


@pytest.mark.parametrize(
    "logits", [[-1e4, 1e4, -1e4], [-104.0, 0.0, -104.0], [-np.inf, 0.0, -np.inf]]
)
def test_never_draws_an_impossible_action(logits: list[float]) -> None:
    """An action whose probability is zero in float32 is not drawn, whatever the noise."""
    assert (draw(logits, 10_000) == 1).all()
    unlucky = np.array([17.0, -5.0, 17.0], np.float32)  # the noise's limits, both ways
    assert Categorical(np.array(logits, np.float32)).sample(unlucky) == 1


@pytest.mark.parametrize("uniform", ["lowest", "highest"])
def test_noise_has_limits(uniform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator's smallest and largest numbers give finite noise, between -5 and 17."""

    def stateless_uniform(shape: Any, seed: Any, minval: float = 0.0) -> Any:
        number = minval if uniform == "lowest" else 1.0 - np.finfo(np.float32).eps
        return tf.fill(shape, np.float32(number))

    monkeypatch.setattr(tf.random, "stateless_uniform", stateless_uniform)
    noise = Categorical.noise([1], seed(0))
    assert -5.0 < noise < 17.0


def test_noise_is_a_function_of_the_seed() -> None:
    """The same for the same seed, another for another one; 0 is a seed."""
    first, again, other = (Categorical.noise([4, 3], seed(number)) for number in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first.numpy() != other.numpy()).all()


@pytest.mark.parametrize("start", [0, -2, 5])
def test_discrete_actions(start: int) -> None:
    """The net counts from 0, the environment from `start`; both in the space's dtype."""
    space = gym.spaces.Discrete(3, start=start)
    actions = actions_for(space)
    assert actions.output_size == 3
    drawn = actions.distribution(LOGITS).sample(actions.noise([2], seed(0)))
    assert drawn.shape == (2,)
    for net, environment in zip(drawn, actions.to_environment(drawn), strict=True):
        assert environment == net + start
        assert space.contains(environment.numpy())


@pytest.mark.parametrize(
    "space", [gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Text(3)], ids=["Box", "Text"]
)
def test_unsupported_space(space: gym.Space) -> None:
    """The message names the space."""
    with pytest.raises(ValueError, match=type(space).__name__):
        actions_for(space)
