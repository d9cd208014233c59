"""Two peers of a3c_tf, put to train the same nets on the same task, for `benchmark_peers.py`.

Vectors are seen by separate policy and value MLPs, two hidden layers of 64 tanh units each; Atari
games by the A3C paper's net (two convolutions, dense 256) with two heads, through Gymnasium's own
preprocessing. Everything runs on the CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

SB3_ENVIRONMENTS = 16
PFRL_PROCESSES = 2
ENDLESS = 10**12  # steps; the meter ends the training, not the step count
FRAMES = 4  # in one observation of a game


def hush_gym() -> None:
    """Imports the retired Gym, as both peers do, without its notice of five lines each time."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(ImportError):
        importlib.import_module("gym")


def is_game(env_id: str) -> bool:
    """Whether an id is that of an Atari game."""
    return env_id.startswith("ALE/")


def make_env(env_id: str) -> Any:
    """One environment; a game shows [4, 84, 84] bytes, and four frames are a step."""
    import gymnasium as gym

    if not is_game(env_id):
        return gym.make(env_id)
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each game
    game = gym.make(env_id, frameskip=1, repeat_action_probability=0.0)
    return FrameStackObservation(AtariPreprocessing(game), FRAMES)


def paper_trunk() -> Any:
    """The A3C paper's convolutions and dense layer, from [B, 4, 84, 84] to [B, 256]."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(FRAMES, 16, 8, 4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2592, 256),
        nn.ReLU(),
    )


def train_sb3(env_id: str, t_max: int, meter: Any) -> None:
    """Trains Stable-Baselines3 A2C with its defaults until the meter says stop.

    The environments of a game are in processes of their own, and PyTorch may use all cores; for
    others both would be slower.
    """
    hush_gym()
    import torch
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    class PaperNet(BaseFeaturesExtractor):
        def __init__(self, observation_space: Any) -> None:
            super().__init__(observation_space, 256)
            self.trunk = paper_trunk()

        def forward(self, observations: Any) -> Any:
            return self.trunk(observations)

    def on_step(*_: Any) -> bool:
        meter.tick(0, SB3_ENVIRONMENTS)
        return not meter.stop.is_set()

    game = is_game(env_id)
    if not game:
        torch.set_num_threads(1)
    envs = make_vec_env(
        lambda: make_env(env_id),
        SB3_ENVIRONMENTS,
        seed=0,
        vec_env_cls=SubprocVecEnv if game else DummyVecEnv,
    )
    kind, nets = (
        ("CnnPolicy", {"features_extractor_class": PaperNet}) if game else ("MlpPolicy", {})
    )
    agent = A2C(kind, envs, n_steps=t_max, device="cpu", seed=0, policy_kwargs=nets)
    agent.learn(ENDLESS, callback=on_step)
    envs.close()


class OldStyleEnv:
    """A Gymnasium environment with the interface PFRL expects, counting its steps.

    `reset` returns the observation only, `step` four values; a truncated episode is announced by
    `info["needs_reset"]`, so that PFRL bootstraps from its last observation.
    """

    def __init__(self, env_id: str, seed: int, on_step: Callable[[], None]) -> None:
        self._env = make_env(env_id)
        self._seed: int | None = seed
        self._on_step = on_step

    def reset(self) -> Any:
        """Starts an episode and returns its first observation."""
        observation, _ = self._env.reset(seed=self._seed)
        self._seed = None  # seed once: the same seed each time would repeat one episode
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Returns observation, reward, terminated and info."""
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._on_step()
        return observation, float(reward), terminated, {**info, "needs_reset": truncated}

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


def train_pfrl(env_id: str, t_max: int, meter: Any) -> None:
    """Trains PFRL A3C until the meter says stop.

    Optimizer and loss weights are those of PFRL's A3C example; learning rate and gradient
    clipping those of Stable-Baselines3.

    Raises:
        ValueError: The environment's actions are not discrete.
    """
    hush_gym()
    import gymnasium
    import numpy as np
    import torch
    from pfrl.agents import A3C
    from pfrl.experiments import train_agent_async
    from pfrl.nn import Branched
    from pfrl.optimizers import SharedRMSpropEpsInsideSqrt
    from pfrl.policies import SoftmaxCategoricalHead
    from pfrl.utils.async_ import AbnormalExitWarning
    from torch import nn

    probe = make_env(env_id)
    if not isinstance(probe.action_space, gymnasium.spaces.Discrete):
        raise ValueError(f"{env_id} has actions {probe.action_space}: --peer pfrl needs Discrete")
    inputs = int(np.prod(probe.observation_space.shape or ()))
    actions = int(probe.action_space.n)
    probe.close()
    scale = np.float32(1 / 255 if is_game(env_id) else 1)

    def mlp(outputs: int) -> list[Any]:
        return [
            nn.Linear(inputs, 64),
            nn.Tanh(),
            nn.Linear(64, 64),
            nn.Tanh(),
            nn.Linear(64, outputs),
        ]

    def make_model() -> Any:
        head = SoftmaxCategoricalHead()
        if not is_game(env_id):
            return Branched(nn.Sequential(*mlp(actions), head), nn.Sequential(*mlp(1)))
        heads = Branched(nn.Sequential(nn.Linear(256, actions), head), nn.Linear(256, 1))
        return nn.Sequential(paper_trunk(), heads)

    def make_agent(process: int) -> Any:
        model = make_model()
        return A3C(
            model,
            SharedRMSpropEpsInsideSqrt(model.parameters(), lr=7e-4, eps=1e-1, alpha=0.99),
            t_max=t_max,
            gamma=0.99,
            beta=1e-2,
            phi=lambda observation: np.asarray(observation, dtype=np.float32) * scale,
            max_grad_norm=0.5,
        )

    def make_old_env(process: int, test: bool) -> OldStyleEnv:
        return OldStyleEnv(env_id, process, lambda: meter.tick(process))

    torch.set_num_threads(1)
    # PFRL hands closures to its processes, which only a fork can inherit.
    multiprocessing.set_start_method("fork", force=True)
    # It only warns of a dead worker; the rate of the other one would look like a result.
    warnings.simplefilter("error", AbnormalExitWarning)
    warnings.filterwarnings("ignore", "This overload of addcmul_ is deprecated")
    with tempfile.TemporaryDirectory() as outdir:
        train_agent_async(
            outdir,
            PFRL_PROCESSES,
            make_old_env,
            steps=ENDLESS,
            eval_interval=None,
            make_agent=make_agent,
            stop_event=meter.stop,
            random_seeds=list(range(PFRL_PROCESSES)),  # PyTorch refuses PFRL's own NumPy integers
        )
