"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from a3c_tf.graphs import configure_tensorflow
from a3c_tf.quiet import tf

configure_tensorflow()


@pytest.fixture
def eagerly() -> Iterator[None]:
    """Runs everything line by line, as one does to find a mistake."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
