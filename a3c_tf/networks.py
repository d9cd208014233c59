"""Keras models from spaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from a3c_tf.actions import actions_for
from a3c_tf.layers import EpisodicLSTM, FreeOutputs
from a3c_tf.normalization import RunningNormalization
from a3c_tf.observations import Observations, is_choice, part_dtype, part_shape
from a3c_tf.quiet import keras

Initializer = Literal["orthogonal", "glorot_uniform"]
Network = Literal["mlp", "paper_cnn", "nature_cnn", "impala"]

# Filters, size and stride of the convolutions.
CONVOLUTIONS = {
    "paper_cnn": ((16, 8, 4), (32, 4, 2)),
    "nature_cnn": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}
IMPALA_FILTERS = (16, 32, 32)
CNN_UNITS = {"paper_cnn": 256, "nature_cnn": 512, "impala": 256}  # of the dense layer behind
# A pixel that hardly ever changes is no reason to amplify what changes it: in units of its range.
PIXEL_FLOOR = 0.1

GAIN = math.sqrt(2)  # of hidden layers, for orthogonal weights

Tensor = Any  # a keras.KerasTensor
Layer = Callable[[Tensor], Tensor]


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
    lstm: bool = False,
    normalize: bool = False,
) -> keras.Model:
    """A policy and a value net as one Keras model: observations to (outputs, values).

    Args:
        observation_space: see `Observations`. Images [H, W, C] or [C, H, W] go through the
            convolutions of a CNN; everything else is flattened, whole numbers as one-hot
            vectors, and joins them before the dense layers.
        action_space: what the policy's outputs must cover.
        hidden_sizes: units of each hidden layer of an MLP.
        activation: of an MLP's hidden layers, by Keras's name; a CNN has ReLUs.
        shared_trunk: one trunk of hidden layers for both heads, instead of one for each.
        initializer: "orthogonal" (gain sqrt(2) in hidden layers, 0.01 for the policy's and 1
            for the value's output), or Keras's default, "glorot_uniform".
        seed: of the initial weights; 0 is a seed like any other.
        network: "mlp"; "paper_cnn", the A3C paper's (arXiv:1602.01783, section 8: two
            convolutions, dense 256); "nature_cnn" (Mnih et al. 2015: three, dense 512); or
            "impala", residual (Espeholt et al. 2018, arXiv:1802.01561, figure 3: dense 256).
        state_dependent_std: for Box actions: standard deviations from the policy's trunk, as in
            the paper, instead of one weight for each.
        lstm: put a LSTM on each trunk, as wide as the trunk's last layer. The model is then
            recurrent; see `A3CAgent`.
        normalize: observations go through a `RunningNormalization`.

    Returns:
        A model from [B, ...] observations to [B, outputs] float32 and [B] float32.

    Raises:
        ValueError: a space of a kind that is not supported, or images too small for a CNN.
    """
    make = _Layers(
        observation_space, hidden_sizes, activation, initializer, seed, network, normalize
    )
    trunks = [make.trunk(name) for name in (["shared"] if shared_trunk else ["policy", "value"])]
    inputs: Any = make.inputs
    states: list[Tensor] = []
    if lstm:
        trunks, states, inputs = make.recurrent(trunks)
    output_size = actions_for(action_space).output_size
    free = output_size // 2 if isinstance(action_space, gym.spaces.Box) else 0
    if state_dependent_std:
        free = 0
    outputs = make.dense(output_size - free, 0.01, "policy_output")(trunks[0])
    if free:
        spread = FreeOutputs(free, name="policy_std")(outputs)
        outputs = keras.layers.Concatenate(name="policy_outputs")([outputs, spread])
    values = make.dense(1, 1.0, "value_output")(trunks[-1])
    values = keras.layers.Reshape((), name="values")(values)
    return keras.Model(inputs, [outputs, values, *states], name="actor_critic")


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

    Args:
        observation_space: see `build_actor_critic`, as for all that follow.
        action_space: Discrete.
        hidden_sizes: units of each hidden layer of an MLP.
        activation: of an MLP's hidden layers.
        initializer: of the weights; the outputs' gain is 1.
        seed: of the initial weights.
        network: which layers.

    Raises:
        ValueError: a space of a kind that is not supported, or images too small for a CNN.
    """
    make = _Layers(observation_space, hidden_sizes, activation, initializer, seed, network)
    values = make.dense(actions_for(action_space).output_size, 1.0, "action_values")
    return keras.Model(make.inputs, values(make.trunk("hidden")), name="action_value")


def join_nets(policy: keras.Model, value: keras.Model, observation_space: gym.Space) -> keras.Model:
    """A user's policy and value net as one model.

    Args:
        policy: from [B, ...] observations to [B, outputs].
        value: from [B, ...] observations to [B] or [B, 1].
        observation_space: of one environment.
    """
    observations = Observations(observation_space)
    inputs = observations.inputs(_inputs(observations))
    values = value(inputs)
    if tuple(values.shape) == (None, 1):
        values = keras.layers.Reshape((), name="values")(values)
    return keras.Model(inputs, [policy(inputs), values], name="actor_critic")


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
        normalize: bool = False,
    ) -> None:
        self._hidden_sizes = hidden_sizes
        self._activation = activation
        self._initializer_name = initializer
        self._seeds = _seeds(seed)
        self._network = network
        observations = Observations(space)
        inputs = _inputs(observations)
        self.inputs = observations.inputs(inputs)
        self._images: list[Tensor] = []
        self._numbers: list[Tensor] = []
        for index, part in enumerate(observations.net_parts):
            self._prepare(index, part, inputs[index], normalize)
        if network != "mlp" and not self._images:
            raise ValueError(
                f"the network {network} needs images [H, W, C] or [C, H, W]; the observation space "
                f"is {space}"
            )

    def dense(
        self, units: int, gain: float, name: str, activation: str | None = None
    ) -> keras.Layer:
        """A dense layer."""
        kernel = self._initializer(gain)
        return keras.layers.Dense(units, activation, kernel_initializer=kernel, name=name)

    def trunk(self, name: str) -> Tensor:
        """The hidden layers on top of the observations; `name` begins the name of each."""
        images = [
            self._convolved(image, f"{name}_{index}" if index else name)
            for index, image in enumerate(self._images)
        ]
        hidden = [*images, *self._numbers]
        joined = hidden[0] if len(hidden) == 1 else keras.layers.Concatenate()(hidden)
        if self._network != "mlp":
            return self.dense(CNN_UNITS[self._network], GAIN, f"{name}_dense", "relu")(joined)
        for depth, units in enumerate(self._hidden_sizes):
            joined = self.dense(units, GAIN, f"{name}_{depth}", self._activation)(joined)
        return joined

    def recurrent(self, trunks: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Any]]:
        """A LSTM on each trunk: their outputs, the state behind them, and all inputs."""
        units = trunks[0].shape[-1]
        state = keras.Input((2 * units * len(trunks),), name="state")
        starts = keras.Input((), name="starts")
        outputs, states = [], []
        for index, trunk in enumerate(trunks):
            layer = EpisodicLSTM(
                units, index, self._initializer_name, next(self._seeds), name=f"lstm_{index}"
            )
            output, after = layer([trunk, state, starts])
            outputs.append(output)
            states.append(after)
        after = states[0] if len(states) == 1 else keras.layers.Concatenate(name="after")(states)
        return outputs, [after], [self.inputs, state, starts]

    def _prepare(self, index: int, part: gym.Space, tensor: Tensor, normalize: bool) -> None:
        """One part of the observations, as numbers that a net can begin with."""
        name = f"observation_{index}"
        if is_choice(part):
            sizes = np.ravel(part.n if isinstance(part, gym.spaces.Discrete) else part.nvec)
            tensor = keras.layers.CategoryEncoding(
                int(max(sizes)), output_mode="one_hot", name=f"{name}_one_hot"
            )(keras.layers.Reshape((len(sizes),))(tensor))
            self._numbers.append(keras.layers.Flatten(name=f"{name}_flat")(tensor))
            return
        image = part_dtype(part) == np.uint8
        scale, floor = (1 / 255, PIXEL_FLOOR) if image else (1.0, 1e-4)
        if normalize and not isinstance(part, gym.spaces.MultiBinary):
            tensor = RunningNormalization(index, scale, floor, name=f"{name}_normal")(tensor)
        elif image:
            tensor = keras.layers.Rescaling(scale, name=f"{name}_scaled")(tensor)
        if self._network == "mlp" or len(part_shape(part)) != 3:
            self._numbers.append(keras.layers.Flatten(name=f"{name}_flat")(tensor))
            return
        if tensor.shape[1] < tensor.shape[3]:
            # [C, H, W], as stacked frames come; convolutions on a CPU want [H, W, C].
            tensor = keras.layers.Permute((2, 3, 1), name=f"{name}_channels_last")(tensor)
        self._images.append(tensor)

    def _convolved(self, image: Tensor, name: str) -> Tensor:
        if self._network == "impala":
            hidden = self._residual(image, name)
        else:
            hidden = image
            for depth, (filters, size, stride) in enumerate(CONVOLUTIONS[self._network]):
                if min(hidden.shape[1:3]) < size:
                    raise ValueError(
                        f"the network {self._network} needs larger images than "
                        f"{tuple(image.shape[1:3])}; take impala, or an mlp"
                    )
                hidden = self._convolution(
                    filters, size, f"{name}_{depth}", strides=stride, activation="relu"
                )(hidden)
        return keras.layers.Flatten(name=f"{name}_flatten")(hidden)

    def _residual(self, image: Tensor, name: str) -> Tensor:
        hidden, relu, add = image, keras.layers.ReLU(), keras.layers.Add()
        for depth, filters in enumerate(IMPALA_FILTERS):
            block = f"{name}_{depth}"
            hidden = self._convolution(filters, 3, block, padding="same")(hidden)
            hidden = keras.layers.MaxPooling2D(3, 2, padding="same")(hidden)
            for twin in "ab":
                inner = hidden
                for conv in "12":
                    layer = self._convolution(filters, 3, f"{block}{twin}{conv}", padding="same")
                    inner = layer(relu(inner))
                hidden = add([hidden, inner])
        return relu(hidden)

    def _convolution(self, filters: int, size: int, name: str, **settings: Any) -> Layer:
        kernel = self._initializer(GAIN)
        layer: Layer = keras.layers.Conv2D(
            filters, size, kernel_initializer=kernel, name=name, **settings
        )
        return layer

    def _initializer(self, gain: float) -> keras.Initializer:
        seed = next(self._seeds)
        if self._initializer_name == "orthogonal":
            return keras.initializers.Orthogonal(gain, seed)
        return keras.initializers.GlorotUniform(seed)


def _inputs(observations: Observations) -> list[Tensor]:
    """A Keras input for each part of the observations."""
    return [
        keras.Input(part_shape(part), dtype=part_dtype(part).name, name=name)
        for name, part in zip(observations.net_names, observations.net_parts, strict=True)
    ]


def _seeds(seed: int) -> Iterator[int]:
    """As many seeds as there are layers, all different."""
    for child in np.random.SeedSequence(seed).generate_state(1000):
        yield int(child)
