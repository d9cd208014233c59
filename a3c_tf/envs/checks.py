"""Whether the numbers that environments return are finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from a3c_tf.errors import NotFiniteError
from a3c_tf.observations import Arrays


def check_finite(what: str, values: npt.NDArray[Any]) -> None:
    """Looks at the numbers of K environments.

    Args:
        what: such as "reward of environment", followed by its number.
        values: of any shape [K, ...].

    Raises:
        NotFiniteError: one of them is NaN or infinite; the text says which.
    """
    if not np.isfinite(values).all():
        position = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise NotFiniteError(f"the {what} {position[0]} is {values[position]}")


def check_observations(whose: str, arrays: Arrays) -> None:
    """Looks at all parts of the observations of K environments; see `check_finite`."""
    for array in arrays:
        if array.dtype == np.float32:
            check_finite(f"observation of {whose}", array)
