"""How a policy acts in an action space: its outputs, its distribution, the environment's action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from a3c_tf.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    Several,
)
from a3c_tf.graphs import Tensor
from a3c_tf.quiet import tf

# Of the logarithm of a standard deviation: it neither collapses nor runs away. In units of half an
# action's range, where it has one.
MIN_LOG_STD, MAX_LOG_STD = -4.0, 1.0

FORBIDDEN = -1e9  # a logit so small that its probability is exactly zero, and finite


class Actions(Protocol):
    """How a policy net acts in a space; [...] stands for any leading dimensions.

    Attributes:
        output_size: how many outputs the policy net needs.
        mask_size: how many choices a mask forbids or allows; 0: there are no masks here.
    """

    output_size: int
    mask_size: int

    def distribution(self, outputs: Tensor, mask: Tensor | None = None) -> Distribution:
        """What the net's outputs, [..., output_size] float32, stand for.

        Args:
            outputs: of the policy net.
            mask: [..., mask_size], 0 for what is forbidden: its probability is zero.
        """

    def noise(self, shape: Sequence[int], seed: Tensor) -> Tensor:
        """Noise for `Distribution.sample`, for actions of the given leading shape."""

    def to_environment(self, actions: Tensor) -> Tensor:
        """Drawn actions as the environment takes them."""


def only_allowed(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits of which the forbidden ones stand for a probability of exactly zero."""
    return logits if mask is None else tf.where(tf.cast(mask, tf.bool), logits, FORBIDDEN)


class DiscreteActions:
    """One of n, counted from `space.start`."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.output_size = self.mask_size = int(space.n)
        self._start = int(space.start)

    def distribution(self, outputs: Tensor, mask: Tensor | None = None) -> Categorical:
        """A categorical distribution from logits."""
        return Categorical(only_allowed(outputs, mask))

    def noise(self, shape: Sequence[int], seed: Tensor) -> Tensor:
        """Gumbel noise."""
        return Categorical.noise([*shape, self.output_size], seed)

    def to_environment(self, actions: Tensor) -> Tensor:
        """[...] int64, from `space.start`."""
        return actions + self._start if self._start else actions


class MultiDiscreteActions:
    """Several choices at once, each counted from its own start."""

    def __init__(self, space: gym.spaces.MultiDiscrete) -> None:
        self._sizes = [int(n) for n in np.ravel(space.nvec)]
        self._space = space
        self.output_size = self.mask_size = sum(self._sizes)

    def distribution(self, outputs: Tensor, mask: Tensor | None = None) -> Several:
        """Independent categorical distributions from logits; one mask after the other."""
        return Several(only_allowed(outputs, mask), self._sizes)

    def noise(self, shape: Sequence[int], seed: Tensor) -> Tensor:
        """Gumbel noise."""
        return Several.noise([*shape, self.output_size], seed)

    def to_environment(self, actions: Tensor) -> Tensor:
        """In the shape and dtype of the space."""
        shaped = tf.reshape(actions, [*actions.shape[:-1], *self._space.shape])
        start: Any = np.asarray(self._space.start, np.int64)
        return tf.cast(shaped + start, self._space.dtype)


class MultiBinaryActions:
    """Bits."""

    def __init__(self, space: gym.spaces.MultiBinary) -> None:
        self._space = space
        self.output_size = int(np.prod(space.shape))
        self.mask_size = 0

    def distribution(self, outputs: Tensor, mask: Tensor | None = None) -> Bernoulli:
        """Independent bits from log-odds."""
        return Bernoulli(outputs)

    def noise(self, shape: Sequence[int], seed: Tensor) -> Tensor:
        """Logistic noise."""
        return Bernoulli.noise([*shape, self.output_size], seed)

    def to_environment(self, actions: Tensor) -> Tensor:
        """In the shape and dtype of the space."""
        shaped = tf.reshape(actions, [*actions.shape[:-1], *self._space.shape])
        return tf.cast(shaped, self._space.dtype)


class BoxActions:
    """Numbers within bounds, finite or not.

    A number with two finite bounds is drawn in units of half its range, from the middle: -1 and 1
    are the bounds. The environment gets it clipped to them, while log-probabilities are those of
    what was drawn.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        self._space = space
        self._size = int(np.prod(space.shape))
        self.output_size = 2 * self._size  # a mean and a standard deviation each
        self.mask_size = 0
        low, high = (np.ravel(b).astype(np.float64) for b in (space.low, space.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore"):
            self._middle = np.where(bounded, (low + high) / 2, 0.0).astype(np.float32)
            self._unit = np.where(bounded, (high - low) / 2, 1.0).astype(np.float32)

    def distribution(self, outputs: Tensor, mask: Tensor | None = None) -> DiagonalGaussian:
        """Normal distributions from means and from numbers for the standard deviations.

        These numbers r are of any size: log std = m + h tanh(r / h), between `MIN_LOG_STD` and
        `MAX_LOG_STD`, m in the middle of them and h half their distance.
        """
        mean, spread = tf.split(outputs, 2, axis=-1)
        middle = (MIN_LOG_STD + MAX_LOG_STD) / 2
        half = (MAX_LOG_STD - MIN_LOG_STD) / 2
        return DiagonalGaussian(mean, middle + half * tf.tanh(spread / half))

    def noise(self, shape: Sequence[int], seed: Tensor) -> Tensor:
        """Normal noise."""
        return DiagonalGaussian.noise([*shape, self._size], seed)

    def to_environment(self, actions: Tensor) -> Tensor:
        """In the shape and dtype of the space, within its bounds."""
        scaled = tf.cast(self._middle + self._unit * actions, self._space.dtype)
        shaped = tf.reshape(scaled, [*actions.shape[:-1], *self._space.shape])
        return tf.clip_by_value(shaped, self._space.low, self._space.high)


def actions_for(space: gym.Space) -> Actions:
    """The kind of actions that a policy net must produce for a space.

    Raises:
        ValueError: the space is of a kind that no distribution here covers.
    """
    if isinstance(space, gym.spaces.Discrete):
        return DiscreteActions(space)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiDiscreteActions(space)
    if isinstance(space, gym.spaces.MultiBinary):
        return MultiBinaryActions(space)
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return BoxActions(space)
    raise ValueError(
        f"action space {space} is not supported: it must be Discrete, MultiDiscrete, MultiBinary "
        "or a Box of floats"
    )
