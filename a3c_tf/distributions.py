"""What a policy's outputs mean: probability distributions over actions, from logits only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from a3c_tf.graphs import Tensor
from a3c_tf.quiet import tf


class Distribution(Protocol):
    """What the agents need of a distribution over actions, [...] or [..., n]."""

    def sample(self, noise: Tensor) -> Tensor:
        """Actions, as a function of noise of the kind's own `noise`."""

    def mode(self) -> Tensor:
        """The most likely actions."""

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probabilities, or log-densities, of actions, [...] float32."""

    def entropy(self) -> Tensor:
        """In nats, [...] float32."""


class Categorical:
    """One of n actions, from unnormalised log-probabilities.

    Args:
        logits: [..., n] float32, of any size: everything is computed from the log-softmax.
    """

    def __init__(self, logits: Tensor) -> None:
        self.log_probabilities = tf.nn.log_softmax(logits)

    @staticmethod
    def noise(shape: Sequence[int], seed: Tensor) -> Tensor:
        """Gumbel noise for `sample`, of the given shape, float32: a pure function of the seed.

        The largest value is 17 and the smallest -5, so that an action 103 nats less likely
        than another one, whose probability is zero in float32, is never drawn.
        """
        uniform = tf.random.stateless_uniform(shape, seed, minval=np.finfo(np.float32).tiny)
        return -tf.math.log(-tf.math.log(uniform))

    def sample(self, noise: Tensor) -> Tensor:
        """Actions drawn by the Gumbel-max trick, [...] int64."""
        return tf.argmax(self.log_probabilities + noise, axis=-1)

    def mode(self) -> Tensor:
        """The most likely actions, [...] int64."""
        return tf.argmax(self.log_probabilities, axis=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probabilities of actions, log pi(a|s) in nats, [...] float32."""
        return tf.gather(
            self.log_probabilities, actions, batch_dims=self.log_probabilities.shape.rank - 1
        )

    def entropy(self) -> Tensor:
        """H(pi) in nats, [...] float32."""
        return -tf.reduce_sum(tf.exp(self.log_probabilities) * self.log_probabilities, axis=-1)


class Several:
    """Independent choices, each from a categorical distribution of its own.

    Args:
        logits: [..., n_1 + n_2 + ...] float32, one after the other.
        sizes: n_1, n_2, ...
    """

    def __init__(self, logits: Tensor, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._parts = [Categorical(part) for part in tf.split(logits, self._sizes, axis=-1)]

    @staticmethod
    def noise(shape: Sequence[int], seed: Tensor) -> Tensor:
        """As for `Categorical`, one number for each logit."""
        return Categorical.noise(shape, seed)

    def sample(self, noise: Tensor) -> Tensor:
        """Actions, [..., len(sizes)] int64."""
        parts = tf.split(noise, self._sizes, axis=-1)
        drawn = [one.sample(part) for one, part in zip(self._parts, parts, strict=True)]
        return tf.stack(drawn, axis=-1)

    def mode(self) -> Tensor:
        """The most likely actions, [..., len(sizes)] int64."""
        return tf.stack([one.mode() for one in self._parts], axis=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """The sum over the choices, in nats, [...] float32."""
        choices = tf.unstack(actions, axis=-1)
        return tf.add_n([one.log_prob(c) for one, c in zip(self._parts, choices, strict=True)])

    def entropy(self) -> Tensor:
        """The sum over the choices, in nats, [...] float32."""
        return tf.add_n([one.entropy() for one in self._parts])


class Bernoulli:
    """Independent bits.

    Args:
        logits: log-odds of a 1, [..., n] float32, of any size.
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    @staticmethod
    def noise(shape: Sequence[int], seed: Tensor) -> Tensor:
        """Logistic noise for `sample`: the difference of two Gumbels, within 22 nats of 0."""
        gumbels = Categorical.noise([*shape, 2], seed)
        return gumbels[..., 0] - gumbels[..., 1]

    def sample(self, noise: Tensor) -> Tensor:
        """Bits, [..., n] int64."""
        return tf.cast(self._logits + noise > 0.0, tf.int64)

    def mode(self) -> Tensor:
        """The more likely bits, [..., n] int64."""
        return tf.cast(self._logits > 0.0, tf.int64)

    def log_prob(self, actions: Tensor) -> Tensor:
        """The sum over the bits, in nats, [...] float32."""
        signs = 2.0 * tf.cast(actions, tf.float32) - 1.0
        return -tf.reduce_sum(tf.nn.softplus(-signs * self._logits), axis=-1)

    def entropy(self) -> Tensor:
        """The sum over the bits, in nats, [...] float32."""
        p = tf.sigmoid(self._logits)
        both = p * tf.nn.softplus(-self._logits) + (1.0 - p) * tf.nn.softplus(self._logits)
        return tf.reduce_sum(both, axis=-1)


class DiagonalGaussian:
    """Independent normal distributions.

    Args:
        mean: [..., n] float32.
        log_std: logarithms of the standard deviations, [..., n] float32.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self._mean = mean
        self._log_std = log_std

    @staticmethod
    def noise(shape: Sequence[int], seed: Tensor) -> Tensor:
        """Standard normal noise for `sample`."""
        return tf.random.stateless_normal(shape, seed)

    def sample(self, noise: Tensor) -> Tensor:
        """Actions, [..., n] float32, without bounds."""
        return self._mean + tf.exp(self._log_std) * noise

    def mode(self) -> Tensor:
        """The means, [..., n] float32."""
        return self._mean

    def log_prob(self, actions: Tensor) -> Tensor:
        """Logarithm of the density, [...] float32."""
        z = (actions - self._mean) * tf.exp(-self._log_std)
        each = -0.5 * tf.square(z) - self._log_std - 0.5 * math.log(2.0 * math.pi)
        return tf.reduce_sum(each, axis=-1)

    def entropy(self) -> Tensor:
        """The differential entropy in nats, [...] float32."""
        return tf.reduce_sum(self._log_std + 0.5 * math.log(2.0 * math.pi * math.e), axis=-1)
