"""Gymnasium spaces: how observations reach the nets, and JSON for saved agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


def observation_dtype(space: gym.Space) -> np.dtype[Any]:
    """The dtype in which observations of a space reach the nets.

    Images (uint8) stay bytes up to the net, which scales them once; everything else is cast to
    float32, once.
    """
    return np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)


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
    raise ValueError(f"unknown kind of space {kind!r}")


def _bounds_to_json(bounds: np.ndarray[Any, Any]) -> Any:
    """One number where all bounds are equal (an image's 28 224 are), else all of them."""
    if bounds.size and (bounds == bounds.flat[0]).all():
        return bounds.flat[0].item()
    return bounds.tolist()
