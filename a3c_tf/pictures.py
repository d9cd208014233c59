"""Pictures of an agent beside its curves: distributions, an animated episode, videos."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from a3c_tf.envs.factory import MakeEnv
from a3c_tf.envs.trial import name_of
from a3c_tf.episodes import drawing, film_episode
from a3c_tf.evaluation import Evaluator, Observer
from a3c_tf.films import MISSING_EXTRA, Animation, Film, Video, can_make_videos
from a3c_tf.samples import Sample
from a3c_tf.telemetry import EventLog

EPISODE = "eval/episode"  # the tag of the animation

# Between two of a kind lie at least the seconds named here, a tenth of the run so far, and 100
# times what the first of them took: they take one percent of the time of the monitor's thread. The
# first episode comes late, since a short run would feel it.
SAMPLE_PAUSE, EPISODE_PAUSE, GROWTH, SHARE = 1.0, 60.0, 0.1, 0.01
SECONDS, VIDEO_SECONDS = 2.0, 60.0  # of play, at most


def make_pictures(
    directory: Path,
    evaluator: Evaluator,
    make_env: MakeEnv,
    env: Any,
    video_every: int,
    clock: Callable[[], float],
    logger: logging.Logger,
) -> Pictures:
    """What pictures there can be of a run; says it if there are no episodes to be seen.

    Its graphs are compiled here, in the main thread.

    Args:
        directory: of the run.
        evaluator: whose agent it is of.
        make_env: as the user gave it.
        env: what it has returned.
        video_every: see `Pictures`.
        clock: in seconds.
        logger: see `Pictures`.
    """
    player = None
    make_drawn = drawing(make_env, env)
    if make_drawn is not None:
        player = evaluator.for_one_episode(make_drawn)
    else:
        logger.info("no episodes are shown: %s does not draw itself as an array", name_of(env))
        if video_every:
            logger.warning("no videos: %s does not draw itself as an array", name_of(env))
            video_every = 0
    sample = Sample(evaluator.agent, evaluator.env_count, clock)
    return Pictures(directory, sample, player, video_every, clock, logger)


class _Rarely:
    """When something is due that costs time.

    Args:
        start: of the run, in seconds.
        first: seconds until it is due for the first time.
        pause: seconds between two, at least.
    """

    def __init__(self, start: float, first: float, pause: float) -> None:
        self._start = start
        self._pause = pause
        self._next = start + first

    def is_due(self, now: float) -> bool:
        return now >= self._next

    def done(self, now: float, cost: float) -> None:
        """It has been done, and has taken `cost` seconds."""
        self._next = now + max(self._pause, GROWTH * (now - self._start), cost / SHARE)


class Pictures:
    """Makes pictures after some of the evaluations, and at the end of the run.

    An episode is played for it anew, which does not count as an evaluation.

    Args:
        directory: of the run.
        sample: of the evaluation.
        player: plays an episode in an environment that draws; None if there is no such.
        video_every: evaluations from one video to the next; 0 for none.
        clock: in seconds.
        logger: gets a warning when something goes wrong, which does not end the run.

    Attributes:
        player: see there; None also after an episode has failed.
    """

    def __init__(
        self,
        directory: Path,
        sample: Sample,
        player: Evaluator | None,
        video_every: int,
        clock: Callable[[], float],
        logger: logging.Logger,
    ) -> None:
        self._videos = directory / "videos"
        self._sample = sample
        self.player = player
        self._video_every = video_every
        self._clock = clock
        self._logger = logger
        self._samples = _Rarely(clock(), 0.0, SAMPLE_PAUSE)
        self._episodes = _Rarely(clock(), EPISODE_PAUSE, EPISODE_PAUSE)
        self._evaluations = 0
        self._sampled = False
        self._filmed = -1  # the step of the last episode
        if video_every and not can_make_videos():
            logger.warning("no videos: %s", MISSING_EXTRA)
            self._video_every = 0
        for partial in self._videos.glob(".*.partial.mp4"):  # of a program that was killed
            with suppress(OSError):  # it is in nobody's way
                partial.unlink()

    def begin(self, last: bool = False) -> Observer | None:
        """Before an evaluation: what is to observe it, if a sample of it is due."""
        self._evaluations += 1
        self._sample.clear()
        self._sampled = last or self._samples.is_due(self._clock())
        return self._sample.see if self._sampled else None

    def write_sample(self, events: EventLog, step: int) -> None:
        """After an evaluation of a global step's weights: writes what was seen of it, if it was."""
        if self._sampled:
            self._sampled = False
            events.histograms(self._sample.distributions(), step)
            self._samples.done(self._clock(), self._sample.seconds)

    def make(
        self,
        events: EventLog,
        step: int,
        should_stop: Callable[[], bool] = lambda: False,
        last: bool = False,
    ) -> None:
        """After an evaluation, or at the end: shows an episode if it is due, unless it is to stop.

        Args:
            events: where to.
            step: the global step of the weights that the player has.
            should_stop: ends it at once.
            last: whether the run is over: its last agent is always shown.
        """
        start = self._clock()
        animation = Animation() if last or self._episodes.is_due(start) else None
        with_video = self._video_every and (last or self._evaluations % self._video_every == 0)
        video = Video(self._videos / f"{step}.mp4") if with_video else None
        if self.player is None or step == self._filmed or not (animation or video):
            return
        self._filmed = step
        try:
            self._film(self.player, animation, video, step, should_stop)
            gif = animation.gif() if animation and not should_stop() else None
        except (Exception, SystemExit) as error:  # an environment may well raise SystemExit
            self._logger.warning("no more episodes are shown, since one has failed: %r", error)
            self.player = None
            return
        if gif is not None:
            events.image(EPISODE, gif, step)
            now = self._clock()
            self._episodes.done(now, 0.0 if video else now - start)

    def _film(
        self,
        player: Evaluator,
        animation: Animation | None,
        video: Video | None,
        step: int,
        should_stop: Callable[[], bool],
    ) -> None:
        films: list[Film] = [film for film in (animation, video) if film is not None]
        seconds = SECONDS if video is None else VIDEO_SECONDS
        whole = False
        try:
            whole = film_episode(player, films, step, should_stop, seconds, self._clock)
        finally:
            if video is not None:
                video.close(keep=whole)
