"""Where a run stands."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Progress:
    """Where a run stands; what a resumed run goes on from.

    Attributes:
        elapsed: seconds of training, those before a resume included.
        best_score: highest mean of an evaluation, or None.
        last_score: mean of the last evaluation, or None.
        last_evaluation: global step of the last evaluation.
        seeded_at: global step that the seeds of workers and evaluation were drawn for.
        last_row: what that wrote into scores.txt, or was about to write.
        stopped_by: "steps", "successful_score", "evaluation_hook", "error" or "interrupt"; None
            while it runs.
        workers_started: how many workers have reported steps.
    """

    elapsed: float = 0.0
    best_score: float | None = None
    last_score: float | None = None
    last_evaluation: int = 0
    seeded_at: int = 0
    last_row: dict[str, float] | None = None
    stopped_by: str | None = None
    workers_started: int = 0

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        values = asdict(self)
        del values["stopped_by"], values["workers_started"]
        return values
