"""A3C on TensorFlow 2 and Keras 3.

The public names are loaded when they are first used, since TensorFlow takes seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from a3c_tf.agents.a3c import A3CAgent, A3CHyperparameters
    from a3c_tf.agents.base import Agent
    from a3c_tf.agents.loading import load_agent
    from a3c_tf.agents.n_step_q import NStepQAgent, NStepQHyperparameters
    from a3c_tf.hooks import LinearInterpolationHook, StepHook
    from a3c_tf.layers import EpisodicLSTM
    from a3c_tf.networks import build_action_value, build_actor_critic
    from a3c_tf.normalization import RunningNormalization, build_reward_scale
    from a3c_tf.schedules import Schedule
    from a3c_tf.training import train_agent_async

__all__ = [
    "A3CAgent",
    "A3CHyperparameters",
    "Agent",
    "EpisodicLSTM",
    "LinearInterpolationHook",
    "NStepQAgent",
    "NStepQHyperparameters",
    "RunningNormalization",
    "Schedule",
    "StepHook",
    "build_action_value",
    "build_actor_critic",
    "build_reward_scale",
    "load_agent",
    "train_agent_async",
]

_HOME = {
    "A3CAgent": "agents.a3c",
    "A3CHyperparameters": "agents.a3c",
    "Agent": "agents.base",
    "EpisodicLSTM": "layers",
    "LinearInterpolationHook": "hooks",
    "NStepQAgent": "agents.n_step_q",
    "NStepQHyperparameters": "agents.n_step_q",
    "RunningNormalization": "normalization",
    "Schedule": "schedules",
    "StepHook": "hooks",
    "build_action_value": "networks",
    "build_actor_critic": "networks",
    "build_reward_scale": "normalization",
    "load_agent": "agents.loading",
    "train_agent_async": "training",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
