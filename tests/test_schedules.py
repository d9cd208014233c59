"""Schedules over the global step."""

from __future__ import annotations

import pytest

from a3c_tf.schedules import Schedule


@pytest.mark.parametrize(
    ("step", "value"), [(0, 1.0), (25, 0.75), (50, 0.5), (99, 0.01), (100, 0.0)]
)
def test_is_a_straight_line(step: int, value: float) -> None:
    """From `start` at step 0 to `stop` at step `steps`."""
    assert Schedule(1.0, 0.0, 100)(step) == pytest.approx(value)


@pytest.mark.parametrize("step", [100, 101, 10**12])
@pytest.mark.parametrize("stop", [0.0, 1e-5])
def test_is_never_beyond_its_end(step: int, stop: float) -> None:
    """Past the end it stays at `stop`, so a learning rate never turns negative."""
    assert Schedule(7e-4, stop, 100)(step) == stop


def test_may_rise() -> None:
    """`stop` may be the larger one."""
    schedule = Schedule(0.0, 2.0, 10)
    assert [schedule(step) for step in (0, 5, 20)] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("step", [0, 1, 10**12])
def test_constant(step: int) -> None:
    """The same value at every step."""
    assert Schedule.constant(0.01)(step) == 0.01
