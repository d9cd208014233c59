"""A3C on TensorFlow 2 and Keras 3.

The public names are loaded when they are first used, since TensorFlow takes seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from a3c_tf.agent import A3CAgent, Hyperparameters, load_agent
    from a3c_tf.networks import build_actor_critic
    from a3c_tf.schedules import Schedule
    from a3c_tf.training import train_agent_async

__all__ = [
    "A3CAgent",
    "Hyperparameters",
    "Schedule",
    "build_actor_critic",
    "load_agent",
    "train_agent_async",
]

_HOME = {
    "A3CAgent": "agent",
    "Hyperparameters": "agent",
    "Schedule": "schedules",
    "build_actor_critic": "networks",
    "load_agent": "agent",
    "train_agent_async": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
