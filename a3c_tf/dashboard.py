"""What TensorBoard shows of a run as a whole: its settings, its row among other runs, its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar.summary import pb as layout_summary
from tensorboard.plugins.hparams import api as hp
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.plugins.hparams.summary_v2 import hparams_config_pb, hparams_pb

from a3c_tf.agents.base import Agent
from a3c_tf.schedules import Schedule

# TensorBoard shows five columns at first: of all settings, those that it takes to differ.
COLUMNS = ("env", "learning_rate", "seed", "t_max", "workers")

FINAL_SCORE = "eval/mean"  # its last value

# The page "Custom Scalars": charts by title, each with regular expressions of its tags.
CHARTS = {
    "Return": {"Return of training episodes": ["rollout/episode_return"]},
    "Losses": {
        "Policy": ["loss/policy"],
        "Value": ["loss/value"],
        "Entropy": ["loss/entropy"],
        "Total": ["loss/total"],
        "Explained variance": ["train/explained_variance"],
        "Gradient norm": ["train/gradient_norm"],
    },
    "Lag and speed": {
        "Policy lag": ["train/policy_lag"],
        "Steps a second": ["time/steps_per_second"],
        "Steps a second of each worker": ["workers/.*/steps_per_second"],
        "Where the workers' time goes": ["time/(act|env|learn|push|wait)"],
    },
}


def settings_of(agent: Agent, **arguments: Any) -> dict[str, Any]:
    """The settings of a run that was started from Python: arguments and hyper-parameters.

    Of a schedule it is the first value.
    """
    hyperparameters = {
        name: value["start"]
        if isinstance(getattr(agent.hyperparameters, name), Schedule)
        else value
        for name, value in asdict(agent.hyperparameters).items()
    }
    return {"agent": type(agent).__name__} | arguments | hyperparameters


def as_markdown(settings: Mapping[str, Any]) -> str:
    """A table."""
    rows = (f"| {name} | `{value}` |" for name, value in settings.items())
    return "\n".join(["| setting | value |", "| --- | --- |", *rows])


def as_hyperparameters(settings: Mapping[str, Any], directory: Path) -> list[Summary]:
    """A row for the page "HParams", with the final score, by which runs can be sorted."""
    # What is None here may be a number in another run; a column is of one kind.
    plain = {
        name: value if isinstance(value, bool | int | float) else str(value)
        for name, value in settings.items()
        if value is not None
    }
    columns = [hp.HParam(name) for name in settings]
    metrics = [hp.Metric(FINAL_SCORE, display_name="final score")]
    # Runs with the same settings would otherwise be one row.
    trial = "/".join(directory.parts[-2:])
    page = hparams_config_pb(columns, metrics)
    plugin_data = page.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(plugin_data.content)
    for column in content.experiment.hparam_infos:
        column.differs = column.name in COLUMNS
    plugin_data.content = content.SerializeToString()
    return [page, hparams_pb(plain, trial_id=trial)]


def layout() -> Summary:
    """One page with all that tells how a run goes."""
    evaluation = layout_pb2.MarginChartContent(
        series=[
            layout_pb2.MarginChartContent.Series(
                value=FINAL_SCORE, lower="eval/min", upper="eval/max"
            )
        ]
    )
    categories = [
        layout_pb2.Category(title=title, chart=[_chart(*chart) for chart in charts.items()])
        for title, charts in CHARTS.items()
    ]
    categories[0].chart.append(
        layout_pb2.Chart(title="Evaluation: mean, min and max", margin=evaluation)
    )
    summary = layout_summary(layout_pb2.Layout(category=categories))
    return Summary.FromString(summary.SerializeToString())  # it is of TensorFlow's own class


def _chart(title: str, tags: Sequence[str]) -> layout_pb2.Chart:
    exact = [f"^{tag}$" for tag in tags]
    return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=exact))
