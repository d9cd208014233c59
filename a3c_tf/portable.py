"""An agent's policy as one Keras model that needs nothing of this package."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from a3c_tf.actions import FORBIDDEN, MAX_LOG_STD, MIN_LOG_STD
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.base import Agent
from a3c_tf.agents.n_step_q import NStepQAgent
from a3c_tf.errors import ConfigError
from a3c_tf.layers import EpisodicLSTM, FreeOutputs, all_layers
from a3c_tf.normalization import LIMIT, RunningNormalization
from a3c_tf.observations import MASK, is_choice, part_dtype, part_shape
from a3c_tf.quiet import keras

STATE, START, NOISE = "state", "start", "noise"
RESERVED = {MASK, STATE, START, NOISE}
OUTPUTS = {"action", "logits", "mean", "log_std", "value", "action_values", "next_state"}

Tensor = Any  # a keras.KerasTensor
Array = npt.NDArray[Any]
ops = keras.ops


def portable_policy(agent: Agent, greedy: bool = False) -> keras.Model:
    """A model from a dict of inputs to a dict of outputs, each [B, ...]; see `docs/export.md`.

    It shares layers with the agent, which must not be trained on while it is in use.

    Args:
        agent: an `A3CAgent` or `NStepQAgent`.
        greedy: the action is the most likely one, instead of one drawn with the input `noise`.

    Raises:
        ConfigError: an agent of another class, of whose nets it is not known how they act.
    """
    if not isinstance(agent, A3CAgent | NStepQAgent):
        raise ConfigError(
            f"the agent is a {type(agent).__name__}; only A3CAgent and NStepQAgent can be exported"
        )
    net = _without_our_layers(agent.model)
    # A recurrent layer of the user's may count the environments while its graph is built.
    batch = 1 if agent.state_size and classes_needed(net) else None

    def an_input(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
        return keras.Input(shape, batch, dtype, name=name)

    inputs: dict[str, Tensor] = {}
    parts: list[Tensor] = []
    for name, part in zip(input_names(agent), agent.observations.parts, strict=True):
        inputs[name] = an_input(name, part_shape(part), input_dtype(part).name)
        parts.append(_from_zero(inputs[name], part) if is_choice(part) else inputs[name])
    seen: Any = agent.observations.inputs(parts)
    if agent.state_size:
        inputs[STATE] = an_input(STATE, (agent.state_size,))
        inputs[START] = an_input(START, ())
        seen = [seen, inputs[STATE], inputs[START]]
    mask = agent.observations.mask(parts)
    if isinstance(agent, NStepQAgent):
        assert isinstance(agent.action_space, gym.spaces.Discrete)
        values = _allowed(net(seen), mask)
        start = int(agent.action_space.start)
        outputs = {"action": _largest(values, "int64", start), "action_values": values}
        return keras.Model(inputs, outputs, name="policy")
    if not greedy:
        inputs[NOISE] = an_input(NOISE, (noise_size(agent),))
    raw, value, *after = net(seen)
    space, noise = agent.action_space, inputs.get(NOISE)
    if isinstance(space, gym.spaces.Box):
        outputs = _numbers(space, raw, noise)
    else:
        outputs = _choices(space, raw, mask, noise)
    outputs["value"] = value
    if after:
        outputs["next_state"] = after[0]
    return keras.Model(inputs, outputs, name="policy")


def input_names(agent: Agent) -> list[str]:
    """A name for each of `Observations.parts`, for all formats, and none that is given already."""
    names: list[str] = []
    for name in agent.observations.net_names:
        # ONNX has one namespace for inputs and outputs, and TensorFlow's names begin with letters.
        taken = name in RESERVED | OUTPUTS or name in names
        while taken or not re.match("[A-Za-z]", name):
            name = f"observation_{name}"
            taken = name in names
        names.append(name)
    return [*names, MASK] if agent.observations.masked else names


def input_dtype(part: gym.Space) -> np.dtype[Any]:
    """The dtype of a part's input."""
    return np.dtype(np.int64) if is_choice(part) else part_dtype(part)


def noise_size(agent: Agent) -> int:
    """How many numbers it takes to draw an action: one a logit, or one a number in a Box."""
    size = agent.actions.output_size
    return size // 2 if isinstance(agent.action_space, gym.spaces.Box) else size


def classes_needed(net: keras.Layer) -> dict[str, str]:
    """The classes in a net that Keras does not have, and the modules that they are from."""
    kinds = {type(layer) for layer in all_layers(net)}
    named = {k.__name__: k.__module__ for k in kinds if not k.__module__.startswith("keras.")}
    return dict(sorted(named.items()))


# Acting ------------------------------------------------------------------------------------------

# What `a3c_tf.actions` says in TensorFlow's operations, in those of Keras: a file can hold them.


def _from_zero(choices: Tensor, part: gym.spaces.Discrete | gym.spaces.MultiDiscrete) -> Tensor:
    return ops.cast(choices - np.asarray(part.start, np.int64), "int32")


def _allowed(logits: Tensor, mask: Tensor | None) -> Tensor:
    return logits if mask is None else ops.where(ops.cast(mask, "bool"), logits, FORBIDDEN)


def _largest(values: Tensor, dtype: str, start: int) -> Tensor:
    # `ops.argmax` looks at single bits, for negative zeros, which TensorFlow Lite cannot.
    index = ops.squeeze(ops.top_k(values, 1)[1], -1)
    return ops.cast(index, dtype) + start


def _choices(
    space: gym.Space, logits: Tensor, mask: Tensor | None, noise: Tensor | None
) -> dict[str, Tensor]:
    """Discrete, MultiDiscrete and MultiBinary actions."""
    dtype = np.dtype(space.dtype).name
    logits = _allowed(logits, mask)
    if isinstance(space, gym.spaces.MultiBinary):
        odds = logits if noise is None else logits + noise
        bits = keras.layers.Reshape(space.shape)(odds > 0.0)
        return {"action": ops.cast(bits, dtype), "logits": logits}

    def chosen(part: Tensor, start: int, noise: Tensor | None) -> Tensor:
        # Noise would be lost in the digits of -1e9, where everything is forbidden.
        scores = ops.log_softmax(part)
        return _largest(scores if noise is None else scores + noise, dtype, start)

    if isinstance(space, gym.spaces.Discrete):
        return {"action": chosen(logits, int(space.start), noise), "logits": logits}
    assert isinstance(space, gym.spaces.MultiDiscrete)
    ends = np.cumsum(np.ravel(space.nvec))[:-1].tolist()
    starts = np.ravel(np.asarray(space.start)).tolist()
    parts = ops.split(logits, ends, axis=-1)
    noises = [None] * len(parts) if noise is None else ops.split(noise, ends, axis=-1)
    each = [chosen(*args) for args in zip(parts, starts, noises, strict=True)]
    action = keras.layers.Reshape(space.shape)(ops.stack(each, axis=-1))
    return {"action": action, "logits": logits}


def _numbers(space: gym.spaces.Box, outputs: Tensor, noise: Tensor | None) -> dict[str, Tensor]:
    """Box actions; mean and standard deviation in the environment's units."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        middle = np.where(bounded, (low + high) / 2, 0.0).astype(np.float32)
        unit = np.where(bounded, (high - low) / 2, 1.0).astype(np.float32)
    log_unit = np.log(np.maximum(unit, np.finfo(np.float32).tiny))
    shaped = keras.layers.Reshape(space.shape)
    mean, spread = ops.split(outputs, 2, axis=-1)
    centre, half = (MIN_LOG_STD + MAX_LOG_STD) / 2, (MAX_LOG_STD - MIN_LOG_STD) / 2
    mean = ops.add(ops.multiply(shaped(mean), unit), middle)
    log_std = ops.add(shaped(centre + half * ops.tanh(spread / half)), log_unit)
    action = mean if noise is None else mean + ops.exp(log_std) * shaped(noise)
    action = ops.maximum(action, _float32(low, np.inf))
    action = ops.minimum(action, _float32(high, -np.inf))
    return {
        "action": ops.cast(action, np.dtype(space.dtype).name),
        "mean": mean,
        "log_std": log_std,
    }


def _float32(bounds: Array, towards: float) -> Array:
    """Bounds in float32, rounded so that they are not outside of those in the space's dtype."""
    rounded = bounds.astype(np.float32)
    outside = rounded < bounds if towards > 0 else rounded > bounds
    return np.where(outside, np.nextafter(rounded, np.float32(towards)), rounded)


# Nets --------------------------------------------------------------------------------------------


def _without_our_layers(net: keras.Model) -> keras.Model:
    """The same layers and weights, but nets of Keras's layers in the place of this package's."""
    done: dict[int, keras.Layer] = {}

    def plain(layer: keras.Layer) -> keras.Layer:
        if id(layer) not in done:
            replace = REPLACEMENTS.get(type(layer))
            if replace is not None:
                done[id(layer)] = replace(layer)
            elif isinstance(layer, keras.Model) and type(layer).__module__.startswith("keras."):
                done[id(layer)] = keras.models.clone_model(layer, clone_function=plain)
            else:
                done[id(layer)] = layer
        return done[id(layer)]

    return plain(net)


def _normalization(layer: RunningNormalization) -> keras.Model:
    shape = tuple(layer.mean.shape)
    numbers = keras.Input(shape)
    # One mean and variance for each number: all axes but the batch.
    normalize = keras.layers.Normalization(axis=tuple(range(1, len(shape) + 1)) or None)
    normal = ops.clip(normalize(ops.cast(numbers, "float32")), -LIMIT, LIMIT)
    mean = np.asarray(layer.mean, np.float64) * layer.center
    variance = np.asarray(layer.variance, np.float64) + layer.floor**2
    normalize.adapt_mean.assign(mean / layer.scale)
    normalize.adapt_variance.assign(variance / layer.scale**2)
    normalize.finalize_state()
    return keras.Model(numbers, normal, name=layer.name)


def _lstm(layer: EpisodicLSTM) -> keras.Model:
    features = keras.Input((layer.cell.kernel.shape[0],))
    state, starts = keras.Input((None,)), keras.Input(())
    first = 2 * layer.units * layer.index
    own = state[:, first : first + 2 * layer.units]
    hidden, cell = ops.split(own * (1.0 - starts)[:, None], 2, axis=-1)
    # Unrolled: one step needs no loop, which the other formats would have to know.
    lstm = keras.layers.LSTM(layer.units, return_state=True, unroll=True)
    output, hidden, cell = lstm(ops.expand_dims(features, 1), initial_state=[hidden, cell])
    lstm.set_weights(layer.get_weights())
    after = ops.concatenate([hidden, cell], axis=-1)
    return keras.Model([features, state, starts], [output, after], name=layer.name)


def _free_outputs(layer: FreeOutputs) -> keras.Model:
    inputs = keras.Input((None,))
    dense = keras.layers.Dense(layer.units, kernel_initializer="zeros")
    nothing = ops.zeros_like(ops.sum(inputs, axis=-1, keepdims=True))  # for each row of the batch
    model = keras.Model(inputs, dense(nothing), name=layer.name)
    dense.bias.assign(layer.outputs)
    return model


REPLACEMENTS: dict[type, Callable[[Any], keras.Model]] = {
    RunningNormalization: _normalization,
    EpisodicLSTM: _lstm,
    FreeOutputs: _free_outputs,
}
