"""From settings to an agent."""

from __future__ import annotations

import gymnasium as gym

from a3c_tf.agents.a3c import A3CAgent, A3CHyperparameters
from a3c_tf.config import TrainConfig
from a3c_tf.networks import build_actor_critic
from a3c_tf.normalization import build_reward_scale
from a3c_tf.quiet import keras
from a3c_tf.schedules import Schedule


def build_agent(
    config: TrainConfig, observation_space: gym.Space, action_space: gym.Space
) -> A3CAgent:
    """The agent that a run's settings describe, with fresh weights.

    Raises:
        ValueError: a space that cannot be trained, or an activation that Keras does not know.
    """
    model = build_actor_critic(
        observation_space,
        action_space,
        config.hidden_sizes,
        config.activation,
        config.shared_trunk,
        config.initializer,
        config.seed,
        config.network,
        lstm=config.lstm,
        normalize=config.normalize_observations,
    )
    optimizer = (
        keras.optimizers.RMSprop(rho=0.99, epsilon=config.optimizer_epsilon)
        if config.optimizer == "rmsprop"
        else keras.optimizers.Adam(epsilon=config.optimizer_epsilon)
    )

    def schedule(value: float, kind: str) -> Schedule:
        return Schedule(value, 0.0, config.steps) if kind == "linear" else Schedule.constant(value)

    hyperparameters = A3CHyperparameters(
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        learning_rate=schedule(config.learning_rate, config.learning_rate_schedule),
        entropy_coefficient=schedule(config.entropy, config.entropy_schedule),
        value_coefficient=config.value_coefficient,
        max_gradient_norm=config.max_gradient_norm,
        reward_clip=config.reward_clip,
        reduction=config.reduction,
    )
    return A3CAgent(
        model,
        observation_space,
        action_space,
        optimizer,
        hyperparameters,
        config.seed,
        build_reward_scale() if config.normalize_rewards else None,
    )
