"""Keras layers that Keras does not have."""

from __future__ import annotations

from typing import Any

from a3c_tf.quiet import keras, tf


@keras.saving.register_keras_serializable("a3c_tf")
class FreeOutputs(keras.layers.Layer):
    """Outputs that do not depend on the inputs: weights, the same for every row of a batch.

    Args:
        units: how many.
        settings: of `keras.layers.Layer`.
    """

    def __init__(self, units: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.units = units

    def build(self, input_shape: Any) -> None:
        """Makes the weights, all zero."""
        self.outputs = self.add_weight(shape=(self.units,), initializer="zeros", name="outputs")

    def call(self, inputs: Any) -> Any:
        """[B, units], whatever the inputs, [B, ...]."""
        return keras.ops.broadcast_to(self.outputs, (keras.ops.shape(inputs)[0], self.units))

    def get_config(self) -> dict[str, Any]:
        """What it takes to make it again."""
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("a3c_tf")
class EpisodicLSTM(keras.layers.Layer):
    """A LSTM over the steps of several environments, which forgets where an episode begins.

    Its batch is time-major: T steps of K environments as T x K rows. One step (T = 1) is for
    acting; in training the layers below and above work on all rows at once, and only the LSTM
    goes step by step.

    Args:
        units: of hidden state, and as many of cell state.
        index: which of several such layers it is, whose states share one tensor.
        initializer: of the weights.
        seed: of the initial weights.
        settings: of `keras.layers.Layer`.
    """

    def __init__(
        self,
        units: int,
        index: int = 0,
        initializer: str = "orthogonal",
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.units = units
        self.index = index
        self.initializer = initializer
        self.seed = seed
        kernel = {"class_name": initializer, "config": {"seed": seed}}
        # With one seed the two would be the same matrix wherever features are as wide as the state.
        other = None if seed is None else seed + 1
        recurrent = {"class_name": "orthogonal", "config": {"seed": other}}
        self.cell = keras.layers.LSTMCell(
            units, kernel_initializer=kernel, recurrent_initializer=recurrent
        )

    def build(self, input_shape: Any) -> None:
        """Makes the weights of the cell.

        Args:
            input_shape: of features, state and starts; see `call`.
        """
        self.cell.build((None, input_shape[0][-1]))

    def call(self, inputs: Any) -> Any:
        """Goes through the steps.

        Args:
            inputs: features [T x K, F]; state before the first step, [K, S]; and starts
                [T x K], 1 where a row is the first of an episode.

        Returns:
            Outputs, [T x K, units], and this layer's state after the last step, [K, 2 units].
        """
        features, state, starts = inputs
        envs = state.shape[0]
        first = 2 * self.units * self.index
        hidden, cell = tf.split(state[:, first : first + 2 * self.units], 2, axis=-1)
        steps = tf.unstack(tf.reshape(features, [-1, envs, features.shape[-1]]))
        goes_on = tf.unstack(tf.reshape(1.0 - starts, [-1, envs, 1]))
        outputs = []
        # Unrolled: the executor that runs the graph in the worker's own thread has no loops.
        for step, kept in zip(steps, goes_on, strict=True):
            output, (hidden, cell) = self.cell(step, [hidden * kept, cell * kept])
            outputs.append(output)
        return tf.concat(outputs, axis=0), tf.concat([hidden, cell], axis=-1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shapes of what `call` returns, while T and K are not known.

        Args:
            input_shape: of features, state and starts.
        """
        return (None, self.units), (None, 2 * self.units)

    def get_config(self) -> dict[str, Any]:
        """What it takes to make it again."""
        own = {n: getattr(self, n) for n in ("units", "index", "initializer", "seed")}
        return {**super().get_config(), **own}


def all_layers(net: keras.Layer) -> list[keras.Layer]:
    """A net and all layers within it, however deep, in a fixed order."""
    return list(net._flatten_layers())
