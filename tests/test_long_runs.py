"""Long runs: `pytest -m slow tests/test_long_runs.py`."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from a3c_tf.build import build_agent
from a3c_tf.config import Backend, TrainConfig, load_preset
from a3c_tf.envs.factory import RegisteredEnv, spaces_of
from a3c_tf.graphs import CompiledFunction
from a3c_tf.monitor import Progress
from a3c_tf.training import train_agent_async

MEGABYTE = 2**20


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_memory_and_traces_stay(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From step 200 000 to 2 000 000, evaluations included: no 20 MB more, and no new trace."""
    made: list[CompiledFunction] = []
    construct = CompiledFunction.__init__

    def counted(self: CompiledFunction, *arguments: object, **named: object) -> None:
        construct(self, *arguments, **named)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(CompiledFunction, "__init__", counted)
    config = TrainConfig().updated(load_preset("CartPole-v1"), "preset")
    make_env = RegisteredEnv(config.env)
    agent = build_agent(config, *spaces_of(make_env))
    seen: list[tuple[int, int, int]] = []

    def on_tick(step: int, progress: Progress) -> None:
        program = psutil.Process()
        family = (program, *program.children(recursive=True))
        memory = sum(process.memory_info().rss for process in family)
        seen.append((step, memory, sum(function.trace_count for function in made)))

    train_agent_async(
        tmp_path,
        config.workers,
        make_env,
        agent=agent,
        steps=2_000_000,
        eval_interval=config.eval_interval,
        eval_n_episodes=20,
        envs_per_worker=config.envs_per_worker,
        t_max=config.t_max,
        backend=backend,
        on_tick=on_tick,
    )
    late = [row for row in seen if row[0] >= 200_000][:-1]
    growth = (late[-1][1] - late[0][1]) / MEGABYTE
    print(f"{backend}: {late[0][0]} to {late[-1][0]} steps, RSS grew by {growth:.1f} MB")
    assert growth < 20
    assert {row[2] for row in late} == {late[0][2]}
