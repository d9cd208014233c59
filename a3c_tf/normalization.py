"""Observations and rewards in units of their own spread, whose statistics all workers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from a3c_tf.graphs import Tensor
from a3c_tf.layers import all_layers
from a3c_tf.quiet import keras, tf

REWARD_SCALE = "reward_scale"  # the net that scales rewards, where there is one
LIMIT = 10.0  # of what comes out: nothing is further from the mean than so many spreads


@keras.saving.register_keras_serializable("a3c_tf")
class RunningNormalization(keras.layers.Layer):
    """Numbers in units of their standard deviation, from their mean, by all that was seen so far.

        y = clip((scale * x - mean) / sqrt(variance + floor^2), -10, 10), element by element

    The statistics are weights that no gradient changes, so they are shared, saved and loaded with
    all others. Calling the layer does not change them: workers send the `moments` of what they
    saw, along with their gradients, and the globals take them in (`merge`), each exactly once.

    Args:
        part: which part of the observations it normalises (see `Observations.parts`).
        scale: what it multiplies with first: 1 / 255 for images.
        floor: least standard deviation, after `scale`.
        center: whether the mean is subtracted.
        settings: of `keras.layers.Layer`.
    """

    def __init__(
        self,
        part: int = 0,
        scale: float = 1.0,
        floor: float = 1e-4,
        center: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.part = part
        self.scale = scale
        self.floor = floor
        self.center = center

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Makes the statistics of nothing seen yet: mean 0, variance 1.

        Args:
            input_shape: [B, ...].
        """
        shape = tuple(input_shape[1:])
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
        self.mean = self.add_weight(shape=shape, initializer="zeros", trainable=False, name="mean")
        self.variance = self.add_weight(
            shape=shape, initializer="ones", trainable=False, name="variance"
        )

    def call(self, inputs: Any) -> Any:
        """The numbers normalised, [B, ...] float32.

        Args:
            inputs: [B, ...] of any dtype.
        """
        # As few passes over a batch of images as possible: offset and factor have no batch. The
        # offset comes first, which leaves all digits of numbers far from zero.
        values = keras.ops.cast(inputs, "float32")
        if self.center:
            values = values - self.mean / self.scale
        spread = keras.ops.sqrt(self.variance + self.floor**2)
        return keras.ops.clip(values * (self.scale / spread), -LIMIT, LIMIT)

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape of the inputs, as float32.

        Args:
            inputs: [B, ...] of any dtype.
        """
        return keras.KerasTensor(inputs.shape, "float32")

    @property
    def moments_size(self) -> int:
        """How many numbers `moments` returns."""
        return 1 + 2 * int(self.mean.value.shape.num_elements())

    def moments(self, values: Tensor, valid: Tensor) -> Tensor:
        """The count, means and sums of squared deviations of a batch, as one vector.

        Args:
            values: [B, ...] of any dtype, not scaled.
            valid: [B] float32, 1 for each row that counts and 0 for the others.
        """
        values = tf.reshape(tf.cast(values, tf.float32) * self.scale, [values.shape[0], -1])
        count = tf.reduce_sum(valid)
        weights = valid[:, tf.newaxis]
        mean = tf.reduce_sum(weights * values, 0) / tf.maximum(count, 1.0)
        squares = tf.reduce_sum(weights * tf.square(values - mean), 0)
        return tf.concat([count[tf.newaxis], mean, squares], 0)

    def merge(self, moments: Tensor) -> None:
        """Takes a batch's moments into the statistics. Part of a graph.

        Chan, Golub and LeVeque 1979, equations 2.1: exact, whatever the order of the batches.

        Args:
            moments: from `moments`.
        """
        size = (self.moments_size - 1) // 2
        seen, mean, squares = tf.split(moments, [1, size, size])
        shape = self.mean.value.shape
        mean, squares, seen = tf.reshape(mean, shape), tf.reshape(squares, shape), seen[0]
        count, ours = self.count.value, self.variance.value
        # The batch's share of all. Counts in float32 are not exact for ever; totals divided by
        # them would drift, while a share only has to be about right.
        share = seen / tf.maximum(count + seen, 1.0)
        theirs = squares / tf.maximum(seen, 1.0)
        delta = mean - self.mean.value
        # The variance of 1 at the start counts for nothing, but stays if the batch is empty.
        ours = tf.where((count == 0.0) & (seen > 0.0), theirs, ours)
        variance = ours + share * (theirs - ours + (1.0 - share) * tf.square(delta))
        self.variance.value.assign(variance)
        self.mean.value.assign_add(share * delta)
        self.count.value.assign_add(seen)

    def get_config(self) -> dict[str, Any]:
        """What it takes to make it again."""
        own = {name: getattr(self, name) for name in ("part", "scale", "floor", "center")}
        return {**super().get_config(), **own}


def build_reward_scale() -> keras.Model:
    """A net from [B] rewards to rewards in units of the spread of the discounted return.

    Its statistics are those of the discounted returns so far, G_t = r_t + gamma G_{t-1}, of each
    environment, as in Engstrom et al. 2020 (arXiv:2005.12729, section 3). Rewards are not
    centred: that would change what is best.
    """
    rewards = keras.Input((), name="rewards")
    scaled = RunningNormalization(center=False, name="scale")(rewards)
    return keras.Model(rewards, scaled, name="reward_scale")


class Normalizations:
    """All normalisations in an agent's nets, and how what workers saw reaches the globals.

    Args:
        nets: of the agent, by name; that of the name `REWARD_SCALE` scales rewards.

    Attributes:
        layers: in a fixed order.
        size: how many numbers `moments` returns: 0 unless something is normalised.
    """

    def __init__(self, nets: Mapping[str, keras.Model]) -> None:
        found = {
            name: [layer for layer in all_layers(net) if isinstance(layer, RunningNormalization)]
            for name, net in nets.items()
        }
        self.layers = [layer for layers in found.values() for layer in layers]
        self.size = sum(layer.moments_size for layer in self.layers)
        self._of_rewards = found.get(REWARD_SCALE, [])

    def moments(self, observations: Sequence[Tensor], discounted: Tensor, valid: Tensor) -> Tensor:
        """What a rollout adds to the statistics. Part of a graph.

        Args:
            observations: [T + 1, K, ...] each; the last one is seen again in the next rollout.
            discounted: the discounted returns so far, [T, K].
            valid: 1 for each step that counts, [T, K].
        """
        moments = [tf.zeros([0])]
        for layer in self.layers:
            seen = discounted if layer in self._of_rewards else observations[layer.part][:-1]
            moments.append(layer.moments(rows(seen), rows(valid)))
        return tf.concat(moments, axis=0)

    def absorb(self, moments: Tensor) -> None:
        """Takes `moments` into the statistics: on the globals, under the lock, in a graph."""
        sizes = [layer.moments_size for layer in self.layers]
        for layer, part in zip(self.layers, tf.split(moments, sizes), strict=True):
            layer.merge(part)


def rows(tensor: Tensor) -> Tensor:
    """[T, K, ...] as [T x K, ...], time-major."""
    return tf.reshape(tensor, [tensor.shape[0] * tensor.shape[1], *tensor.shape[2:]])
