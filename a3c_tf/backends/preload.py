"""Imported by the fork server, once for all children: they find TensorFlow imported."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the nets of a worker are too small for a GPU

import a3c_tf.backends.child  # noqa: F401
from a3c_tf.signals import outlive_signals

outlive_signals()
