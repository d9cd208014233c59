"""The cores that this program may use."""

from __future__ import annotations

import os

import psutil


def usable_cores() -> list[int]:
    """Numbers of the cores that the system lets this process run on; a container may have few."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # not on macOS
        return list(process.cpu_affinity())
    return list(range(os.cpu_count() or 1))


def core_count() -> int:
    """How many there are."""
    return len(usable_cores())
