"""How observations of a space reach the nets: as arrays, one for each elementary space in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

MASK = "action_mask"

Arrays = list[npt.NDArray[Any]]
Tensor = Any  # of TensorFlow, which is not imported here: `check_env` comes before it


class Observations:
    """The parts of an observation space, in a fixed order, and what belongs to none of the nets.

    A part is a Box, Discrete, MultiDiscrete or MultiBinary. Its arrays are bytes for images
    (uint8, scaled once, by the net), int32 counted from 0 for Discrete and MultiDiscrete, and
    float32 for everything else.

    A Dict may hold `action_mask`, 1 for each action that is allowed. That part is not for the
    nets but for the policy's distribution.

    Args:
        space: of one environment.

    Attributes:
        space: the same.
        net_space: what a net gets to see: the space without its mask.
        net_parts: the elementary spaces in that.
        net_names: a name for each of them.
        parts: the same, and the mask's as the last one.
        masked: whether there is a mask.

    Raises:
        ValueError: the space is, or holds, one that cannot be trained on.
    """

    def __init__(self, space: gym.Space) -> None:
        self.space = space
        self.masked = isinstance(space, spaces.Dict) and MASK in space.spaces
        self.net_space = space
        if isinstance(space, spaces.Dict) and self.masked:
            rest = {name: part for name, part in space.spaces.items() if name != MASK}
            # Nearly always one observation beside the mask: no need of a Dict around it.
            self._alone = len(rest) == 1
            self.net_space = next(iter(rest.values())) if self._alone else spaces.Dict(rest)
        self.net_parts = _parts(self.net_space, space)
        self.net_names = _names(self.net_space, "")
        self.parts = self.net_parts
        if isinstance(space, spaces.Dict) and self.masked:
            self.parts = [*self.net_parts, space.spaces[MASK]]
        # Looked up once: `arrays` is called for every step.
        self._casts = [
            (np.asarray(p.start) if is_choice(p) else None, part_shape(p), part_dtype(p))
            for p in self.parts
        ]

    def arrays(self, observations: Any, batch_size: int) -> Arrays:
        """A vector environment's observations as new arrays, [K, ...] each.

        Raises:
            ValueError: one has another shape than its space.
        """
        values = self._values(observations)
        return [
            _cast(value, batch_size, *cast) for value, cast in zip(values, self._casts, strict=True)
        ]

    def single(self, observation: Any) -> Arrays:
        """One environment's observation as arrays, [1, ...] each."""
        values = self._values(observation)
        return [
            _cast(np.asarray(value)[None], 1, *cast)
            for value, cast in zip(values, self._casts, strict=True)
        ]

    def layout(self, *leading: int) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each part's array, behind some leading dimensions."""
        return [((*leading, *part_shape(part)), part_dtype(part)) for part in self.parts]

    def inputs(self, tensors: Sequence[Tensor]) -> Any:
        """What a net takes: the arrays (or tensors) in the structure of `net_space`."""
        unused = iter(tensors)
        return _pack(self.net_space, unused)

    def mask(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Which actions are allowed, [..., actions], not 0 where one is; None: all of them."""
        return tensors[-1] if self.masked else None

    def _values(self, observation: Any) -> list[Any]:
        if not self.masked:
            return _unpack(self.net_space, observation)
        rest = {name: value for name, value in observation.items() if name != MASK}
        shown = next(iter(rest.values())) if self._alone else rest
        return [*_unpack(self.net_space, shown), observation[MASK]]


def is_choice(space: gym.Space) -> TypeGuard[spaces.Discrete | spaces.MultiDiscrete]:
    """Whether a part is one or several whole numbers that stand for things, not for amounts."""
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete)


def part_shape(space: gym.Space) -> tuple[int, ...]:
    """The shape of a part's arrays behind the batch dimension."""
    return tuple(space.shape or ())


def part_dtype(space: gym.Space) -> np.dtype[Any]:
    """The dtype of a part's arrays."""
    if is_choice(space):
        return np.dtype(np.int32)
    image = isinstance(space, spaces.Box) and space.dtype == np.uint8
    return np.dtype(np.uint8 if image else np.float32)


def _parts(space: gym.Space, whole: gym.Space) -> list[gym.Space]:
    if isinstance(space, spaces.Dict):
        return [part for inner in space.spaces.values() for part in _parts(inner, whole)]
    if isinstance(space, spaces.Tuple):
        return [part for inner in space.spaces for part in _parts(inner, whole)]
    known = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    if isinstance(space, known) and (space.shape == () or np.prod(space.shape or (1,)) > 0):
        return [space]
    inside = "" if space is whole else f" (in {whole})"
    raise ValueError(
        f"observation space {space}{inside} is not supported: it must be Box, Discrete, "
        "MultiDiscrete or MultiBinary, none of them empty, or a Dict or Tuple of these"
    )


def _names(space: gym.Space, name: str) -> list[str]:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [name or "observation"]
    inner = space.spaces
    items = inner.items() if isinstance(inner, dict) else enumerate(inner)
    prefix = f"{name}_" if name else ""
    return [n for key, part in items for n in _names(part, re.sub(r"\W", "_", f"{prefix}{key}"))]


def _unpack(space: gym.Space, value: Any) -> list[Any]:
    if isinstance(space, spaces.Dict):
        return [v for name, inner in space.spaces.items() for v in _unpack(inner, value[name])]
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, value, strict=True)
        return [v for inner, one in pairs for v in _unpack(inner, one)]
    return [value]


def _pack(space: gym.Space, values: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _pack(inner, values) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_pack(inner, values) for inner in space.spaces)
    return next(values)


def _cast(
    value: Any, batch_size: int, start: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    # A copy: some environments go on writing into the array that they returned.
    array = np.array(value if start is None else value - start, dtype)
    given, needed = array.shape, (batch_size, *shape)
    if given != needed:
        if given[:1] == needed[:1]:
            given, needed = given[1:], needed[1:]
        raise ValueError(f"an observation has the shape {given}, but its space says {needed}")
    return array
