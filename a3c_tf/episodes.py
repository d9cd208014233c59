"""One episode, played for somebody to look at."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from a3c_tf.envs.factory import MakeEnv, RegisteredEnv
from a3c_tf.errors import at_the_end
from a3c_tf.evaluation import Evaluator, Observer, Step
from a3c_tf.films import Film, Scene, has_display


def drawn(make_env: RegisteredEnv, render_mode: str) -> MakeEnv:
    """A `make_env` for environments that draw themselves, one by one.

    It is no `RegisteredEnv`, whose native vector environments cannot draw.
    """
    if render_mode != "human" and not has_display():
        # Else SDL says on the error stream that it has looked for a screen.
        os.environ["SDL_VIDEODRIVER"] = "dummy"
    drawing = make_env.rendered(render_mode)
    return lambda worker_index, test: drawing(worker_index, test)


def can_draw(env: gym.Env, render_mode: str) -> bool:
    """Whether an environment says that it has a render mode."""
    return render_mode in ((env.metadata or {}).get("render_modes") or ())


def drawing(make_env: MakeEnv, env: Any) -> MakeEnv | None:
    """A `make_env` whose environments return frames, without a screen; None if they cannot.

    Args:
        make_env: as the user gave it. One of the user's own is asked only if what it returns has
            the `render_mode` "rgb_array" already.
        env: what it has returned.
    """
    if isinstance(make_env, RegisteredEnv):
        return drawn(make_env, "rgb_array") if can_draw(env, "rgb_array") else None
    if isinstance(env, gym.Env) and env.render_mode == "rgb_array":
        return make_env
    return None


def filming(films: Sequence[Film]) -> Observer:
    """Shows every step of an evaluation to some films."""

    def observe(step: Step) -> None:
        scene = Scene(step.envs)
        for film in films:
            film.see(scene)

    return observe


def film_episode(
    player: Evaluator,
    films: Sequence[Film],
    number: int,
    should_stop: Callable[[], bool],
    seconds: float,
    clock: Callable[[], float],
) -> bool:
    """Plays one episode, or as much of it as fits into the time.

    The environment is made for it and closed afterwards, in the same thread, since what draws may
    belong to a thread.

    Args:
        player: an evaluator of one episode in environments that draw.
        films: what watches.
        number: see `Evaluator.run`.
        should_stop: asked before every step.
        seconds: how long at most.
        clock: in seconds.

    Returns:
        False if `should_stop` has broken it off.
    """
    deadline = clock() + seconds
    with at_the_end(player.close):
        player.run(lambda: should_stop() or clock() > deadline, number, filming(films))
    return not should_stop()
