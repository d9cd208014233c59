"""train_agent_async: builds, starts, joins and ends a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from a3c_tf.agent import A3CAgent
from a3c_tf.backends.plan import WorkerPlan
from a3c_tf.backends.processes import process_workers
from a3c_tf.backends.supervisor import supervise
from a3c_tf.backends.threads import thread_workers
from a3c_tf.checkpoints import newest_checkpoint
from a3c_tf.config import Backend
from a3c_tf.envs.factory import MakeEnv, check_env
from a3c_tf.errors import CheckpointError
from a3c_tf.evaluation import Evaluator
from a3c_tf.graphs import configure_tensorflow
from a3c_tf.monitor import PolicyMonitor, Progress
from a3c_tf.parameters import ParameterServer
from a3c_tf.worker import RunningWorker

# on_tick(global step, progress), called about ten times a second
OnTick = Callable[[int, Progress], None]

BACKENDS: dict[str, Callable[..., Sequence[RunningWorker]]] = {
    "threads": thread_workers,
    "processes": process_workers,
}


def train_agent_async(
    outdir: str | Path,
    processes: int,
    make_env: MakeEnv,
    *,
    steps: int = 8 * 10**7,
    eval_interval: int | None = 10**6,
    eval_n_episodes: int = 10,
    successful_score: float | None = None,
    agent: A3CAgent | None = None,
    make_agent: Callable[[int], A3CAgent] | None = None,
    save_best_so_far_agent: bool = True,
    logger: logging.Logger | None = None,
    envs_per_worker: int = 1,
    t_max: int = 5,
    seed: int = 0,
    eval_seconds: float = 0.0,
    checkpoint_seconds: float = 60.0,
    resume: bool = False,
    backend: Backend = "threads",
    on_tick: OnTick | None = None,
) -> A3CAgent:
    """Trains an agent with asynchronous workers.

    Args:
        outdir: the run directory.
        processes: how many workers.
        make_env: `make_env(worker_index, test)` returns one environment. It is called in the
            worker, once for each of its environments, and with test=True for evaluation and,
            first of all, in the calling thread for a check.
        steps: environment steps of all workers together.
        eval_interval: steps between evaluations; None or 0 for none but the last.
        eval_n_episodes: whole episodes in one evaluation.
        successful_score: mean evaluation return at which the run ends.
        agent: what to train; its nets are the global ones.
        make_agent: `make_agent(0)` makes the agent, where none is given.
        save_best_so_far_agent: keep the agent with the best evaluation in `best/`.
        logger: for errors and warnings.
        envs_per_worker: K, environments that a worker steps together.
        t_max: T, steps of a rollout.
        seed: of the environments and of the actions drawn.
        eval_seconds: if more than 0, seconds between evaluations, in place of the steps.
        checkpoint_seconds: seconds between checkpoints.
        resume: go on from the newest checkpoint in `outdir`.
        backend: "threads" of this process, or child "processes".
        on_tick: called about ten times a second in the calling thread with the global step
            and the progress.

    Returns:
        The trained agent.

    Raises:
        ValueError: an argument cannot be used; nothing has been started.
        FileExistsError: `outdir` holds a run, and `resume` is False.
        CheckpointError: there is no valid checkpoint to resume from.
        BaseException: the first error of any worker, environment or of the monitor, as itself,
            and KeyboardInterrupt; `<step>_except/` and a checkpoint have been saved.
    """
    logger = logger or logging.getLogger("a3c_tf")
    outdir = Path(outdir)
    if agent is None and make_agent is None:
        raise ValueError("give train_agent_async either agent or make_agent")
    for name, value, least in (
        ("processes", processes, 1),
        ("steps", steps, 1),
        ("envs_per_worker", envs_per_worker, 1),
        ("t_max", t_max, 1),
        ("eval_n_episodes", eval_n_episodes, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; it must be one of {', '.join(BACKENDS)}")
    if not resume and (outdir / "scores.txt").exists():
        raise FileExistsError(f"{outdir} holds a run already: resume it or take a new directory")
    configure_tensorflow()
    check_env(make_env)
    if agent is None:
        assert make_agent is not None
        agent = make_agent(0)
    server = ParameterServer(agent)
    progress = Progress()
    if resume:
        _, _, snapshot, saved = newest_checkpoint(outdir / "checkpoints", logger.warning)
        try:
            server.restore(snapshot)
        except ValueError as error:
            raise CheckpointError(f"{outdir} cannot be resumed like this: {error}") from error
        progress = Progress(**saved)
    outdir.mkdir(parents=True, exist_ok=True)

    # One child for each worker's environments and actions, one for evaluation. A resumed run
    # draws other numbers than the one before it, which it would otherwise repeat.
    seeds = np.random.SeedSequence([seed, server.global_step]).generate_state(2 * processes + 1)
    plans = [
        WorkerPlan(
            index,
            processes,
            make_env,
            envs_per_worker,
            t_max,
            steps,
            action_seed=int(seeds[2 * index]),
            env_seed=int(seeds[2 * index + 1]),
        )
        for index in range(processes)
    ]
    workers = BACKENDS[backend](plans, agent, server)
    monitored = agent.clone()
    monitor = PolicyMonitor(
        outdir,
        server,
        workers,
        monitored,
        Evaluator(monitored, make_env, eval_n_episodes, int(seeds[-1])),
        eval_interval or 0,
        eval_seconds,
        successful_score,
        checkpoint_seconds,
        progress,
        save_best_so_far_agent,
    )

    def tick() -> None:
        if on_tick:
            on_tick(server.global_step, monitor.progress)

    try:
        supervise([worker.run for worker in workers], monitor.run, tick)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if not interrupted:
            logger.error("the run ends at step %d: %r", server.global_step, error)
        try:
            monitor.finish("interrupt" if interrupted else "error")
        except Exception as failure:  # must not hide what ended the run
            logger.error("the end of the run could not be saved: %r", failure)
        raise
    monitor.finish("steps")
    tick()
    return agent
