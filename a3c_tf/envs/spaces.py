"""Gymnasium spaces as JSON, for saved agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """A description of a space that JSON can hold.

    Raises:
        ValueError: the space is of a kind that no agent is trained on.
    """
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": np.asarray(space.start).tolist(),
            "dtype": str(space.dtype),
        }
    if isinstance(space, gym.spaces.MultiBinary):
        n = space.n if isinstance(space.n, int) else list(space.shape)
        return {"type": "MultiBinary", "n": n}
    if isinstance(space, gym.spaces.Box):
        return {
            "type": "Box",
            "low": _bounds_to_json(space.low),
            "high": _bounds_to_json(space.high),
            "shape": list(space.shape),
            "dtype": str(space.dtype),
        }
    if isinstance(space, gym.spaces.Dict):
        parts = {name: space_to_json(part) for name, part in space.spaces.items()}
        return {"type": "Dict", "spaces": parts}
    if isinstance(space, gym.spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise ValueError(f"space {space} cannot be saved")


def space_from_json(description: dict[str, Any]) -> gym.Space:
    """The space that `space_to_json` described.

    Raises:
        ValueError: the description is of no known kind.
    """
    kind = description["type"]
    if kind == "Discrete":
        return gym.spaces.Discrete(description["n"], start=description["start"])
    if kind == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(
            np.array(description["nvec"]),
            dtype=np.dtype(description["dtype"]).type,
            start=np.array(description["start"]),
        )
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(description["n"])
    if kind == "Box":
        dtype = np.dtype(description["dtype"]).type
        shape = tuple(description["shape"])
        low, high = (
            np.broadcast_to(np.array(description[bound], dtype), shape) for bound in ("low", "high")
        )
        return gym.spaces.Box(low, high, dtype=dtype)
    if kind == "Dict":
        parts = description["spaces"].items()
        return gym.spaces.Dict([(name, space_from_json(part)) for name, part in parts])
    if kind == "Tuple":
        return gym.spaces.Tuple([space_from_json(part) for part in description["spaces"]])
    raise ValueError(f"unknown kind of space {kind!r}")


def _bounds_to_json(bounds: np.ndarray[Any, Any]) -> Any:
    """One number where all bounds are equal (an image's 28 224 are), else all of them."""
    if bounds.size and (bounds == bounds.flat[0]).all():
        return bounds.flat[0].item()
    return bounds.tolist()
