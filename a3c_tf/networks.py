"""Keras models from spaces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import gymnasium as gym
import numpy as np

from a3c_tf.distributions import actions_for
from a3c_tf.envs.runner import observation_dtype
from a3c_tf.quiet import keras

Initializer = Literal["orthogonal", "glorot_uniform"]


def build_actor_critic(
    observation_space: gym.Space,
    action_space: gym.Space,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "tanh",
    shared_trunk: bool = False,
    initializer: Initializer = "orthogonal",
    seed: int = 0,
) -> keras.Model:
    """A policy and a value net as one Keras model: observations to (logits, values).

    Args:
        observation_space: a Box; of any shape, flattened.
        action_space: what the policy's outputs must cover.
        hidden_sizes: units of each hidden layer.
        activation: of the hidden layers, by Keras's name.
        shared_trunk: one trunk of hidden layers for both heads, instead of one for each.
        initializer: "orthogonal" (gain sqrt(2) in hidden layers, 0.01 for the policy's and 1
            for the value's output), or Keras's default, "glorot_uniform".
        seed: of the initial weights; 0 is a seed like any other.

    Returns:
        A model from [B, ...] observations to [B, outputs] float32 and [B] float32.

    Raises:
        ValueError: a space of a kind that is not supported.
    """
    if not isinstance(observation_space, gym.spaces.Box):
        raise ValueError(
            f"observation space {observation_space} is not supported: this version trains on "
            "Box observations only"
        )
    output_size = actions_for(action_space).output_size
    seeds = iter(np.random.SeedSequence(seed).generate_state(2 * len(hidden_sizes) + 2))

    def dense(units: int, gain: float, name: str, activation: str | None = None) -> keras.Layer:
        layer_seed = int(next(seeds))
        kernel = (
            keras.initializers.Orthogonal(gain, layer_seed)
            if initializer == "orthogonal"
            else keras.initializers.GlorotUniform(layer_seed)
        )
        return keras.layers.Dense(units, activation, kernel_initializer=kernel, name=name)

    observations = keras.Input(
        observation_space.shape, dtype=observation_dtype(observation_space).name, name="observation"
    )
    features = observations
    if observation_space.dtype == np.uint8:
        features = keras.layers.Rescaling(1 / 255, name="scale")(features)
    features = keras.layers.Flatten(name="flatten")(features)

    def trunk(name: str) -> keras.KerasTensor:
        hidden = features
        for depth, units in enumerate(hidden_sizes):
            hidden = dense(units, math.sqrt(2), f"{name}_{depth}", activation)(hidden)
        return hidden

    for_policy = trunk("shared" if shared_trunk else "policy")
    for_value = for_policy if shared_trunk else trunk("value")
    logits = dense(output_size, 0.01, "policy_output")(for_policy)
    values = keras.layers.Reshape((), name="values")(dense(1, 1.0, "value_output")(for_value))
    return keras.Model(observations, [logits, values], name="actor_critic")
