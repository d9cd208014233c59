"""What a policy's outputs mean: probability distributions over actions, from logits only."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from a3c_tf.graphs import Tensor
from a3c_tf.quiet import tf


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


class DiscreteActions:
    """How a policy net acts in a `Discrete` space.

    Args:
        space: the environment's action space.

    Attributes:
        output_size: how many outputs the policy net needs.
    """

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.output_size = int(space.n)
        self._start = int(space.start)

    def distribution(self, outputs: Tensor) -> Categorical:
        """The distribution that the net's outputs, [..., n], stand for."""
        return Categorical(outputs)

    def noise(self, shape: Sequence[int], seed: Tensor) -> Tensor:
        """Noise for `Categorical.sample`, for actions of the given shape."""
        return Categorical.noise([*shape, self.output_size], seed)

    def to_environment(self, actions: Tensor) -> Tensor:
        """The actions as the environment counts them, from `space.start`."""
        return actions + self._start if self._start else actions


def actions_for(space: gym.Space) -> DiscreteActions:
    """The kind of actions that a policy net must produce for a space.

    Raises:
        ValueError: the space is of a kind that no distribution here covers.
    """
    if isinstance(space, gym.spaces.Discrete):
        return DiscreteActions(space)
    raise ValueError(
        f"action space {space} is not supported: this version trains Discrete actions only"
    )
