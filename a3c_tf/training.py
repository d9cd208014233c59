"""train_agent_async: builds, starts, joins and ends a run."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import numpy as np

from a3c_tf.agents.base import Agent
from a3c_tf.backends.plan import WorkerPlan
from a3c_tf.backends.processes import CHILD_NAME, MISSING_GUARD, process_workers
from a3c_tf.backends.threads import thread_workers
from a3c_tf.backends.turns import FixedOrder
from a3c_tf.config import Backend
from a3c_tf.dashboard import settings_of
from a3c_tf.envs.factory import MakeEnv
from a3c_tf.envs.trial import check_env, name_of
from a3c_tf.evaluation import Evaluator
from a3c_tf.graphs import configure_tensorflow, forget_kernels
from a3c_tf.hooks import GlobalStepHook
from a3c_tf.monitor import EvaluationHook, PolicyMonitor, run_clock
from a3c_tf.parameters import ParameterServer
from a3c_tf.pictures import make_pictures
from a3c_tf.progress import Progress
from a3c_tf.quiet import keras
from a3c_tf.reports import RunningWorker
from a3c_tf.resuming import fit, restore, whose_turn
from a3c_tf.running import OnTick, run_to_the_end
from a3c_tf.signals import stop_requests
from a3c_tf.watchdog import Watchdog, Watched


def train_agent_async(
    outdir: str | Path,
    processes: int,
    make_env: MakeEnv,
    profile: bool = False,
    steps: int = 8 * 10**7,
    eval_interval: int | None = 10**6,
    eval_n_steps: int | None = None,
    eval_n_episodes: int | None = 10,
    max_episode_len: int | None = None,
    step_offset: int = 0,
    successful_score: float | None = None,
    agent: Agent | None = None,
    make_agent: Callable[[int], Agent] | None = None,
    global_step_hooks: Sequence[GlobalStepHook] = (),
    save_best_so_far_agent: bool = True,
    logger: logging.Logger | None = None,
    *,
    backend: Backend = "threads",
    envs_per_worker: int = 1,
    t_max: int = 5,
    seed: int = 0,
    eval_envs: int = 1,
    eval_seconds: float = 0.0,
    evaluation_hooks: Sequence[EvaluationHook] = (),
    video_every: int = 0,
    settings: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 60.0,
    stall_timeout: float = 300.0,
    deterministic: bool = False,
    resume: bool = False,
    on_tick: OnTick | None = None,
) -> Agent:
    """Trains an agent with asynchronous workers.

    The arguments up to `logger` are those of ChainerRL's function of this name, in their order
    (docs/from-chainerrl.md).

    Args:
        outdir: the run directory.
        processes: how many workers.
        make_env: `make_env(worker_index, test)` returns one environment. It is called in the
            worker, once for each of its environments; and in the calling thread with test=True,
            for a check and for evaluation.
        profile: write a cProfile file for each worker, `profile-<index>.out`.
        steps: environment steps of all workers together.
        eval_interval: steps between evaluations; None for none at all, 0 for one at the end.
        eval_n_steps: environment steps in one evaluation; needs eval_n_episodes=None. An
            unfinished episode counts only if it is the only one.
        eval_n_episodes: whole episodes in one evaluation.
        max_episode_len: steps after which an episode is truncated, in evaluation too.
        step_offset: the global step to start from.
        successful_score: mean evaluation return at which the run ends.
        agent: what to train; its nets are the global ones.
        make_agent: `make_agent(0)` makes the agent, where none is given.
        global_step_hooks: `hook(env, agent, step)` is called for every global step, in rising
            order, where the global weights are; see `StepHook`.
        save_best_so_far_agent: keep the agent with the best evaluation in `best/`.
        logger: for episodes of worker 0 and evaluations (info), warnings and errors.
        backend: "threads" of this process, or child "processes".
        envs_per_worker: K, environments that a worker steps together.
        t_max: T, steps of a rollout.
        seed: of the environments and of the actions drawn.
        eval_envs: environments that evaluation steps together; each is made with test=True.
        eval_seconds: if more than 0, seconds between evaluations, in place of the steps.
        evaluation_hooks: `hook(agent, scores, step)` is called after each evaluation with the
            agent that was evaluated; a run ends if one returns "stop".
        video_every: evaluations from one video in `videos/` to the next; 0 for none. Needs the
            extra `video`, and an environment that draws itself (docs/metrics.md).
        settings: what TensorBoard shows as the run's settings; by default these arguments and
            the hyper-parameters.
        checkpoint_seconds: seconds between checkpoints.
        stall_timeout: seconds without a step after which a worker is reported with the place
            where it is; after twice that the run ends. 0 for never.
        deterministic: workers (threads) and monitor take turns in a fixed order, so that a run
            can be repeated bit for bit; it is resumed as if it had not been broken off if the
            environments are `Replayable`. Seconds between checkpoints are counted as 1000 steps.
        resume: go on from the newest checkpoint in `outdir`.
        on_tick: called about ten times a second in the calling thread with the global step
            and the progress.

    Returns:
        The trained agent.

    Raises:
        ValueError: an argument cannot be used; nothing has been started.
        FileExistsError: `outdir` holds a run, and `resume` is False.
        CheckpointError: there is no valid checkpoint to resume from.
        RuntimeError: a worker process has died, or the script has no `__main__` guard.
        StalledError: a worker, or the evaluation, has made no step for twice the `stall_timeout`.
        KeyboardInterrupt: Ctrl-C; `Terminated`, which is one, for SIGTERM.
        BaseException: the first error of any worker, environment, hook or of the monitor, as
            itself. In all of these cases `<step>_except/` and a checkpoint have been saved.
    """
    _leave_if_in_a_child()
    logger = logger or logging.getLogger("a3c_tf")
    outdir = Path(outdir).absolute()  # an environment may change the working directory
    if agent is None and make_agent is None:
        raise ValueError("give train_agent_async either agent or make_agent")
    if (eval_n_steps is None) == (eval_n_episodes is None):
        raise ValueError(
            f"eval_n_steps is {eval_n_steps} and eval_n_episodes is {eval_n_episodes}; "
            "one of them must be None"
        )
    for name, value, least in (
        ("processes", processes, 1),
        ("steps", steps, 1),
        ("envs_per_worker", envs_per_worker, 1),
        ("t_max", t_max, 1),
        ("eval_interval", eval_interval, 0),
        ("eval_n_steps", eval_n_steps, 1),
        ("eval_n_episodes", eval_n_episodes, 1),
        ("eval_envs", eval_envs, 1),
        ("max_episode_len", max_episode_len, 1),
        ("step_offset", step_offset, 0),
        ("seed", seed, 0),
        ("eval_seconds", eval_seconds, 0),
        ("video_every", video_every, 0),
        ("checkpoint_seconds", checkpoint_seconds, 0),
        ("stall_timeout", stall_timeout, 0),
    ):
        if not isinstance(value, int | float | None):
            raise ValueError(f"{name} is {value!r}; it must be a number")
        if least == 1 and value is not None and value != int(value):
            raise ValueError(f"{name} is {value}; it must be a whole number")
        if value is not None and not value >= least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    if callable(global_step_hooks) or callable(evaluation_hooks):
        raise ValueError("hooks are given as a list: global_step_hooks=[hook]")
    if backend not in get_args(Backend):
        raise ValueError(
            f"backend is {backend!r}; it must be one of {', '.join(get_args(Backend))}"
        )
    if profile and backend == "threads" and sys.version_info >= (3, 12):
        raise ValueError(
            "profile is True: from Python 3.12 on, cProfile cannot tell threads apart; "
            "take backend='processes'"
        )
    if deterministic and (backend != "threads" or eval_seconds):
        raise ValueError(
            f"deterministic is True: it needs backend='threads', not {backend!r}, and "
            f"eval_seconds=0, not {eval_seconds}"
        )
    if successful_score is not None and eval_interval is None and not eval_seconds:
        raise ValueError(
            f"successful_score is {successful_score}, but eval_interval is None: without "
            "evaluations there are no scores"
        )
    if resume and step_offset:
        raise ValueError(f"step_offset is {step_offset}; a resumed run goes on from its own step")
    if not resume and (outdir / "scores.txt").exists():
        raise FileExistsError(
            f"{outdir} holds a run already: resume it, remove it, or take a new directory"
        )
    if outdir.exists() and not outdir.is_dir():
        raise FileExistsError(f"{outdir} is a file; take a directory")
    processes, envs_per_worker, t_max = int(processes), int(envs_per_worker), int(t_max)
    configure_tensorflow()

    with ExitStack() as until_the_end:
        until_the_end.callback(forget_kernels)
        env = make_env(0, True)
        check_env(env)
        closing = until_the_end.enter_context(ExitStack())
        closing.callback(env.close)
        if agent is None:
            assert make_agent is not None
            agent = make_agent(0)
        server = ParameterServer(agent, step_offset, global_step_hooks)
        progress = Progress(last_evaluation=step_offset)
        states: list[dict[str, Any]] = []
        if resume:
            progress, states = restore(server, outdir, logger)
        order = None
        if deterministic:
            keras.utils.set_random_seed(seed)
            if resume and not fit(states, processes, envs_per_worker):
                logger.warning("resumed with other workers: it does not go on as it would have")
                states = []
            order = FixedOrder(processes + 1, whose_turn(states))
        if not (deterministic and states):
            # A resumed run draws other numbers than the one before it, which it would otherwise
            # repeat; unless it goes on exactly from where that was.
            progress.seeded_at, states = server.global_step, []
        request = until_the_end.enter_context(stop_requests())
        # One for each worker's environments and actions, one for evaluation.
        root = np.random.SeedSequence([seed, progress.seeded_at])
        seeds = root.generate_state(2 * processes + 1)
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
                max_episode_len=max_episode_len,
                profile=outdir / f"profile-{index}.out" if profile else None,
                replayable=deterministic,
                state=states[index] if states else None,
            )
            for index in range(processes)
        ]
        workers: Sequence[RunningWorker] = (
            thread_workers(plans, agent, server, order)
            if backend == "threads"
            else process_workers(plans, agent, server, logger)
        )
        monitored = agent.clone()
        evaluator, pictures = None, None
        if eval_interval is not None or eval_seconds > 0:
            evaluator = Evaluator(
                monitored,
                make_env,
                eval_n_episodes,
                int(seeds[-1]),
                envs=eval_envs,
                steps=eval_n_steps,
                max_episode_len=max_episode_len,
                first=env,
            )
            closing.pop_all()
            closing.callback(evaluator.close)
            pictures = make_pictures(
                outdir, evaluator, make_env, env, video_every, run_clock(server, order), logger
            )
        outdir.mkdir(parents=True, exist_ok=True)
        monitor = PolicyMonitor(
            outdir,
            server,
            workers,
            monitored,
            evaluator,
            pictures,
            eval_interval=eval_interval or 0,
            eval_seconds=eval_seconds,
            successful_score=successful_score,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
            save_best=save_best_so_far_agent,
            evaluation_hooks=evaluation_hooks,
            settings=settings
            or settings_of(
                agent,
                env=name_of(env),
                backend=backend,
                workers=processes,
                envs_per_worker=envs_per_worker,
                t_max=t_max,
                steps=steps,
                seed=seed,
            ),
            logger=logger,
            resumed=resume,
            order=order,
        )
        players = [evaluator, pictures.player if pictures else None]
        watched: list[Watched] = [*workers, *(player for player in players if player)]
        watchdog = Watchdog(watched, stall_timeout, logger)
        run_to_the_end(server, workers, monitor, watchdog, request, name_of(env), on_tick, logger)
    return agent


def _leave_if_in_a_child() -> None:
    """Ends a worker process that was about to train by itself.

    A worker process imports the user's script. If the script trains without asking whether it is
    the main program, it gets here again; the parent recognises the exit code.
    """
    if multiprocessing.current_process().name.startswith(CHILD_NAME):
        os._exit(MISSING_GUARD)
