"""Evaluates a saved agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from a3c_tf.commands.output import OK, usage
from a3c_tf.commands.saved import env_of, find_agent, load_fitting
from a3c_tf.config import NamedValues
from a3c_tf.envs.factory import spaces_of
from a3c_tf.errors import ConfigError, at_the_end
from a3c_tf.flags import parse_flags

EVAL_ENVS = 20  # more at once gain little: the last episode is waited for anyway


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluates a saved agent on whole episodes and prints its scores."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of a run (its best agent, else its last one is taken) or of an agent."""
    env: str | None = None
    """Environment id; by default that of the run."""
    env_args: NamedValues = field(default_factory=dict)
    """Arguments of the environment that is named; by default, those of the run."""
    episodes: int = 100
    """Whole episodes."""
    seed: int = 12345
    """Of environments and actions; not the run's, so that the episodes are new."""
    greedy: bool = False
    """The most likely action instead of a drawn one."""
    json: bool = False
    """One JSON object on standard output and nothing else."""


def evaluate(arguments: Sequence[str]) -> int:
    """`a3c-tf evaluate`, `scripts/evaluate.py`."""
    config = parse_flags(EvaluateConfig, arguments, "evaluate")
    try:
        agent_directory = find_agent(config.run)
        make_env = env_of(agent_directory, config.env, config.env_args)
        spaces = spaces_of(make_env)
        if config.episodes < 1:
            raise ConfigError(f"--episodes is {config.episodes}; it must be at least 1")
        if config.seed < 0:
            raise ConfigError(f"--seed is {config.seed}; it must be at least 0")
        agent = load_fitting(agent_directory, make_env, spaces)
    except (ValueError, FileNotFoundError) as error:
        return usage(error)
    from a3c_tf.evaluation import Evaluator

    evaluator = Evaluator(agent, make_env, config.episodes, config.seed, config.greedy, EVAL_ENVS)
    with at_the_end(evaluator.close):
        scores = evaluator.run()
    assert scores is not None
    summary = scores.summary()
    result = {name: summary[name] for name in ("mean", "stdev", "min", "max")}
    result["count"] = config.episodes
    if config.json:
        print(json.dumps(result))
    else:
        print(f"{agent_directory}: " + "  ".join(f"{k} {v:.6g}" for k, v in result.items()))
    return OK
