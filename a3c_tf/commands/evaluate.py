"""Evaluates a saved agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from a3c_tf.commands.output import EVAL_ENVS, OK, answer, usage
from a3c_tf.commands.saved import SavedAgent, load_fitting
from a3c_tf.envs.factory import spaces_of
from a3c_tf.errors import ConfigError, at_the_end
from a3c_tf.flags import parse_flags


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(SavedAgent):
    """Evaluates a saved agent on whole episodes and prints its scores."""

    episodes: int = 100
    """Whole episodes."""
    seed: int = 12345
    """Of environments and actions; not the run's, so that the episodes are new."""
    json: bool = False
    """One JSON object on standard output and nothing else."""


def evaluate(arguments: Sequence[str]) -> int:
    """`a3c-tf evaluate`, `scripts/evaluate.py`."""
    config = parse_flags(EvaluateConfig, arguments, "evaluate")
    try:
        agent_directory, make_env = config.find()
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
    with answer():
        if config.json:
            print(json.dumps(result))
        else:
            print(f"{agent_directory}: " + "  ".join(f"{k} {v:.6g}" for k, v in result.items()))
    return OK
