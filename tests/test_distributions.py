"""Distributions over actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from a3c_tf.distributions import Bernoulli, Categorical, DiagonalGaussian, Several
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


# Several choices -------------------------------------------------------------------------------


def test_several_choices() -> None:
    """Each part is a categorical of its own; log-probabilities and entropies add up."""
    several = Several(np.concatenate([LOGITS, LOGITS[:, :2]], axis=-1), [3, 2])
    parts = Categorical(LOGITS), Categorical(LOGITS[:, :2])
    actions = tf.constant([[2, 0], [1, 1]], tf.int64)
    expected = parts[0].log_prob(actions[:, 0]) + parts[1].log_prob(actions[:, 1])
    np.testing.assert_allclose(several.log_prob(actions), expected, rtol=1e-6)
    entropy = parts[0].entropy() + parts[1].entropy()
    np.testing.assert_allclose(several.entropy(), entropy, rtol=1e-6)
    np.testing.assert_array_equal(several.mode(), [[2, 1], [0, 0]])
    noise = Several.noise([2, 5], seed(0))
    drawn = [parts[0].sample(noise[:, :3]), parts[1].sample(noise[:, 3:])]
    np.testing.assert_array_equal(several.sample(noise), np.stack(drawn, axis=-1))


# Bits --------------------------------------------------------------------------------------------

ODDS = np.array([[0.0, 1.5, -3.0]], np.float32)


def test_bits() -> None:
    """Log-probabilities and entropies are those of the sigmoid, added up."""
    p = 1 / (1 + np.exp(-ODDS[0]))
    bits = Bernoulli(ODDS)
    expected = np.log(p[0]) + np.log(1 - p[1]) + np.log(p[2])
    np.testing.assert_allclose(bits.log_prob(tf.constant([[1, 0, 1]])), [expected], rtol=1e-5)
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).sum()
    np.testing.assert_allclose(bits.entropy(), [entropy], rtol=1e-5)
    np.testing.assert_array_equal(bits.mode(), [[0, 1, 0]])


def test_frequencies_of_drawn_bits() -> None:
    """They are the probabilities, within five standard deviations."""
    count = 20_000
    odds = np.broadcast_to(ODDS, (count, 3))
    frequencies = Bernoulli(odds).sample(Bernoulli.noise(odds.shape, seed(0))).numpy().mean(axis=0)
    p = 1 / (1 + np.exp(-ODDS[0]))
    assert (np.abs(frequencies - p) < 5 * np.sqrt(p * (1 - p) / count)).all()


def test_large_odds() -> None:
    """Everything is finite, and a bit that is sure is never drawn the other way."""
    odds = np.broadcast_to(np.array([1e4, -1e4], np.float32), (1000, 2))
    bits = Bernoulli(odds)
    drawn = bits.sample(Bernoulli.noise(odds.shape, seed(0)))
    assert (drawn.numpy() == [1, 0]).all()
    assert np.isfinite(bits.log_prob(1 - drawn)).all()
    np.testing.assert_allclose(bits.entropy(), 0.0, atol=1e-6)


# Numbers -----------------------------------------------------------------------------------------


def test_gaussian() -> None:
    """Density and entropy by their formulas, added up; the mode is the mean."""
    mean, std = np.array([[1.0, -2.0]]), np.array([[0.5, 3.0]])
    gaussian = DiagonalGaussian(tf.constant(mean, tf.float32), tf.constant(np.log(std), tf.float32))
    x = np.array([[0.3, 4.0]])
    density = np.exp(-(((x - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    log_prob = gaussian.log_prob(tf.constant(x, tf.float32))
    np.testing.assert_allclose(log_prob, np.log(density).sum(axis=-1), rtol=1e-5)
    entropy = (0.5 * np.log(2 * np.pi * np.e * std**2)).sum(axis=-1)
    np.testing.assert_allclose(gaussian.entropy(), entropy, rtol=1e-5)
    np.testing.assert_allclose(gaussian.mode(), mean)
    np.testing.assert_allclose(gaussian.sample(tf.constant([[2.0, -1.0]])), [[2.0, -5.0]])


def test_spread_of_drawn_numbers() -> None:
    """Mean and standard deviation are those asked for; the noise is a function of the seed."""
    noise = DiagonalGaussian.noise([20_000, 1], seed(0))
    log_std = tf.fill([20_000, 1], np.float32(np.log(0.5)))
    drawn = DiagonalGaussian(tf.fill([20_000, 1], 3.0), log_std).sample(noise)
    assert drawn.numpy().mean() == pytest.approx(3.0, abs=0.02)
    assert drawn.numpy().std() == pytest.approx(0.5, abs=0.02)
    np.testing.assert_array_equal(noise, DiagonalGaussian.noise([20_000, 1], seed(0)))
    assert (noise.numpy() != DiagonalGaussian.noise([20_000, 1], seed(1)).numpy()).any()
