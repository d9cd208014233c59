"""Imports TensorFlow and Keras without their log lines; the package takes both from here.

TensorFlow 2.21 writes about ten lines to the standard error stream while it is imported and
while it looks for a GPU, whatever TF_CPP_MIN_LOG_LEVEL says
(https://github.com/tensorflow/tensorflow/issues/100442). They come from C++, so the stream's
file descriptor is turned away for that moment. If the import fails, what was written is shown.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

STDERR = 2  # C++ writes to the file descriptor, not to `sys.stderr`


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Holds back what is written to standard error; shows it if an exception is raised."""
    with contextlib.suppress(AttributeError, ValueError):  # no stream, or one that is closed
        sys.stderr.flush()
    try:
        saved = os.dup(STDERR)
    except OSError:  # a program without standard error has nothing to turn away
        yield
        return
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), STDERR)
        try:
            yield
        except Exception:
            held_back.seek(0)
            os.write(saved, held_back.read())
            raise
        finally:
            os.dup2(saved, STDERR)
            os.close(saved)


with quiet_stderr(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import keras
    import tensorflow as tf

    tf.config.list_physical_devices()  # looks for a GPU, which is the rest of the noise

__all__ = ["keras", "tf"]
