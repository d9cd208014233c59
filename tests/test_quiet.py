"""Standard error while TensorFlow is imported."""

from __future__ import annotations

import os

import pytest

from a3c_tf.quiet import STDERR, quiet_stderr


def test_held_back(capfd: pytest.CaptureFixture[str]) -> None:
    """What C++ writes to the file descriptor is not seen; later lines are."""
    with quiet_stderr():
        os.write(STDERR, b"noise\n")
    os.write(STDERR, b"news\n")
    assert capfd.readouterr().err == "news\n"


def test_shown_with_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    """If the import fails, the lines may say why."""

    def fail() -> None:
        with quiet_stderr():
            os.write(STDERR, b"reason\n")
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert capfd.readouterr().err == "reason\n"
