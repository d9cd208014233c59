"""Which of TensorFlow's kernels a program takes."""

from __future__ import annotations

import os


def choose_kernels(network: str) -> None:
    """Switches TensorFlow's oneDNN kernels off where they are slower, before it is imported.

    They double the speed of convolutions, but cost small dense layers a tenth of theirs. Child
    processes inherit the choice.
    """
    if network == "mlp":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
