"""Keras layers that saved nets are made of; importing this lets Keras load them."""

from __future__ import annotations

from typing import Any

from a3c_tf.quiet import keras


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
