"""Saved agents, by the path that a user gives."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import tyro

from a3c_tf.config import NamedValues, TrainConfig
from a3c_tf.envs.factory import RegisteredEnv
from a3c_tf.errors import ConfigError
from a3c_tf.run_directory import read_config


@dataclass(frozen=True, kw_only=True)
class SavedAgent:
    """The flags that name an agent and the environment that it acts in."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of a run (its best agent, else its last one is taken) or of an agent."""
    env: str | None = None
    """Environment id; by default that of the run."""
    env_args: NamedValues = field(default_factory=dict)
    """Arguments of the environment that is named; by default, those of the run."""
    greedy: bool = False
    """The most likely action instead of a drawn one."""

    def find(self) -> tuple[Path, RegisteredEnv]:
        """Where the agent is, and its environment.

        Raises:
            ValueError: there is no agent, or no such environment.
        """
        directory = find_agent(self.run)
        return directory, env_of(directory, self.env, self.env_args)


def find_agent(path: Path) -> Path:
    """The directory itself if it holds an agent, else the run's best, else its last agent."""
    candidates = [path, path / "best"]
    last = [p for p in path.glob("*_*") if re.fullmatch(r"\d+_(finish|except)", p.name)]
    candidates += sorted(last, key=lambda p: int(p.name.split("_")[0]), reverse=True)
    for candidate in candidates:
        if (candidate / "agent.json").is_file():
            return candidate
    raise ConfigError(f"{path} holds no agent and no run with one")


def env_of(agent_directory: Path, env_id: str | None, env_args: dict[str, Any]) -> RegisteredEnv:
    """The environment that is named, else the run's, as it was there."""
    if env_id is not None:
        return RegisteredEnv(env_id, arguments=env_args)
    if env_args:
        raise ConfigError(f"--env-args is {env_args}; name the --env as well")
    for directory in (agent_directory, *agent_directory.resolve().parents[:2]):
        if (directory / "config.yaml").is_file():
            origin = str(directory / "config.yaml")
            settings = read_config(directory)
            if "env" not in settings:
                raise ConfigError(f"{origin} has no env; name the --env")
            config = TrainConfig().updated(
                {n: settings[n] for n in ("env", "sticky_actions", "env_args") if n in settings},
                origin,
            )
            return RegisteredEnv(config.env, config.sticky_actions, config.env_args)
    raise ConfigError(f"{agent_directory} is not in a run directory; name the --env")


def load_fitting(
    agent_directory: Path, make_env: RegisteredEnv, spaces: tuple[gym.Space, gym.Space]
) -> Any:
    """The agent, if it is for an environment of these spaces."""
    from a3c_tf.agents.loading import load_agent
    from a3c_tf.graphs import configure_tensorflow

    configure_tensorflow()
    agent = load_agent(agent_directory)
    if spaces != (agent.observation_space, agent.action_space):
        raise ConfigError(
            f"{make_env.env_id} has the spaces {spaces[0]} and {spaces[1]}, the agent was "
            f"trained on {agent.observation_space} and {agent.action_space}"
        )
    return agent
