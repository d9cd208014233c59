"""Keras models from spaces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import gymnasium as gym
import numpy as np

from a3c_tf.actions import actions_for
from a3c_tf.envs.spaces import observation_dtype
from a3c_tf.layers import FreeOutputs
from a3c_tf.quiet import keras

Initializer = Literal["orthogonal", "glorot_uniform"]
Network = Literal["mlp", "paper_cnn"]

# Filters, size and stride of the convolutions, and the units of the dense layer that follows.
CONVOLUTIONS = {"paper_cnn": (((16, 8, 4), (32, 4, 2)), 256)}


def build_actor_critic(
    observation_space: gym.Space,
    action_space: gym.Space,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "tanh",
    shared_trunk: bool = False,
    initializer: Initializer = "orthogonal",
    seed: int = 0,
    network: Network = "mlp",
    state_dependent_std: bool = False,
) -> keras.Model:
    """A policy and a value net as one Keras model: observations to (logits, values).

    Args:
        observation_space: a Box; of any shape, flattened, for an MLP; [H, W, C] for a CNN.
        action_space: what the policy's outputs must cover.
        hidden_sizes: units of each hidden layer of an MLP.
        activation: of an MLP's hidden layers, by Keras's name; a CNN has ReLUs.
        shared_trunk: one trunk of hidden layers for both heads, instead of one for each.
        initializer: "orthogonal" (gain sqrt(2) in hidden layers, 0.01 for the policy's and 1
            for the value's output), or Keras's default, "glorot_uniform".
        seed: of the initial weights; 0 is a seed like any other.
        network: "mlp", or "paper_cnn": the A3C paper's net for images, two convolutions (16
            of 8x8 with stride 4, 32 of 4x4 with stride 2) and a dense layer of 256.
        state_dependent_std: for Box actions: standard deviations from the policy's trunk, as in
            the paper, instead of one weight for each.

    Returns:
        A model from [B, ...] observations to [B, outputs] float32 and [B] float32.

    Raises:
        ValueError: a space of a kind that is not supported.
    """
    make = _Layers(observation_space, hidden_sizes, activation, initializer, seed, network)
    output_size = actions_for(action_space).output_size
    free = output_size // 2 if isinstance(action_space, gym.spaces.Box) else 0
    if state_dependent_std:
        free = 0
    for_policy = make.trunk("shared" if shared_trunk else "policy")
    for_value = for_policy if shared_trunk else make.trunk("value")
    outputs = make.dense(output_size - free, 0.01, "policy_output")(for_policy)
    if free:
        spread = FreeOutputs(free, name="policy_std")(outputs)
        outputs = keras.layers.Concatenate(name="policy_outputs")([outputs, spread])
    values = make.dense(1, 1.0, "value_output")(for_value)
    values = keras.layers.Reshape((), name="values")(values)
    return keras.Model(make.observations, [outputs, values], name="actor_critic")


def build_action_value(
    observation_space: gym.Space,
    action_space: gym.Space,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "tanh",
    initializer: Initializer = "orthogonal",
    seed: int = 0,
    network: Network = "mlp",
) -> keras.Model:
    """A Keras model from [B, ...] observations to Q(s, a), [B, actions] float32.

    The arguments and errors are those of `build_actor_critic`.
    """
    make = _Layers(observation_space, hidden_sizes, activation, initializer, seed, network)
    values = make.dense(actions_for(action_space).output_size, 1.0, "action_values")
    return keras.Model(make.observations, values(make.trunk("hidden")), name="action_value")


class _Layers:
    """Makes the layers of one model; each has a seed of its own."""

    def __init__(
        self,
        space: gym.Space,
        hidden_sizes: Sequence[int],
        activation: str,
        initializer: Initializer,
        seed: int,
        network: Network,
    ) -> None:
        if not isinstance(space, gym.spaces.Box):
            raise ValueError(
                f"observation space {space} is not supported: this version trains on Box "
                "observations only"
            )
        if network in CONVOLUTIONS and len(space.shape) != 3:
            raise ValueError(
                f"the network {network} needs images [H, W, C]; the observations have the shape "
                f"{space.shape}"
            )
        self._hidden_sizes = hidden_sizes
        self._activation = activation
        self._orthogonal = initializer == "orthogonal"
        self._seeds = _seeds(seed)
        self._network = network
        self.observations = keras.Input(
            space.shape, dtype=observation_dtype(space).name, name="observation"
        )
        self._features = self.observations
        if space.dtype == np.uint8:
            self._features = keras.layers.Rescaling(1 / 255, name="scale")(self._features)
        if network in CONVOLUTIONS and space.shape[0] < space.shape[2]:
            # [C, H, W], as stacked frames come; convolutions on a CPU want [H, W, C].
            self._features = keras.layers.Permute((2, 3, 1), name="channels_last")(self._features)

    def dense(
        self, units: int, gain: float, name: str, activation: str | None = None
    ) -> keras.Layer:
        """A dense layer."""
        kernel = self._initializer(gain)
        return keras.layers.Dense(units, activation, kernel_initializer=kernel, name=name)

    def trunk(self, name: str) -> keras.KerasTensor:
        """The hidden layers on top of the observations; `name` begins the name of each."""
        hidden, gain = self._features, math.sqrt(2)
        if self._network not in CONVOLUTIONS:
            hidden = keras.layers.Flatten(name=f"{name}_flatten")(hidden)
            for depth, units in enumerate(self._hidden_sizes):
                hidden = self.dense(units, gain, f"{name}_{depth}", self._activation)(hidden)
            return hidden
        convolutions, units = CONVOLUTIONS[self._network]
        for depth, (filters, size, stride) in enumerate(convolutions):
            hidden = keras.layers.Conv2D(
                filters,
                size,
                stride,
                activation="relu",
                kernel_initializer=self._initializer(gain),
                name=f"{name}_{depth}",
            )(hidden)
        hidden = keras.layers.Flatten(name=f"{name}_flatten")(hidden)
        return self.dense(units, gain, f"{name}_{len(convolutions)}", "relu")(hidden)

    def _initializer(self, gain: float) -> keras.Initializer:
        seed = next(self._seeds)
        if self._orthogonal:
            return keras.initializers.Orthogonal(gain, seed)
        return keras.initializers.GlorotUniform(seed)


def _seeds(seed: int) -> Iterator[int]:
    """As many seeds as there are layers, all different."""
    for child in np.random.SeedSequence(seed).generate_state(1000):
        yield int(child)
