"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import ale_py  # noqa: F401  registers its games, once: not in a test that cleans up after itself
import pytest

# As the scripts do, before TensorFlow is imported: worker processes inherit it, and other kernels
# would give other last bits.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

from a3c_tf.graphs import configure_tensorflow
from a3c_tf.quiet import tf

# As a program does, before the first operation: with several threads an operation may add up in
# another order, which shows in the last bit.
configure_tensorflow()


@pytest.fixture
def eagerly() -> Iterator[None]:
    """Runs everything line by line, as one does to find a mistake."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
