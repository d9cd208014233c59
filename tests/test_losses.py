"""The loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from a3c_tf.distributions import Categorical
from a3c_tf.losses import Losses, Reduction, a3c_loss, explained_variance
from a3c_tf.quiet import tf

# Two steps of two environments; the last one is a reset step.
STEPS: dict[str, Any] = {
    "log_probs": np.array([[-1.0, -2.0], [-3.0, -4.0]], np.float32),
    "entropies": np.array([[0.1, 0.2], [0.3, 0.4]], np.float32),
    "values": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32),
    "advantages": np.array([[10.0, -20.0], [30.0, 40.0]], np.float32),
    "returns": np.array([[2.0, 4.0], [6.0, 8.0]], np.float32),
    "valid": np.array([[1.0, 1.0], [1.0, 0.0]], np.float32),
}


def loss(reduction: Reduction = "mean", **changes: Any) -> Losses:
    """The loss of `STEPS` with some arguments changed; entropy weight 2, value weight 0.25."""
    arguments = STEPS | {"entropy_coefficient": 2.0, "value_coefficient": 0.25} | changes
    return a3c_loss(**arguments, reduction=reduction)


@pytest.mark.parametrize(("reduction", "divisor"), [("sum", 1), ("mean", 3)])
def test_one_reduction_for_all_terms(reduction: Reduction, divisor: int) -> None:
    """The sum over the valid steps, or that divided by their number."""
    policy = (1.0 * 10.0 - 2.0 * 20.0 + 3.0 * 30.0) / divisor
    value = (1.0 + 4.0 + 9.0) / divisor
    entropy = (0.1 + 0.2 + 0.3) / divisor
    expected = (policy + 0.25 * value - 2.0 * entropy, policy, value, entropy)
    np.testing.assert_allclose(loss(reduction), expected, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_reset_steps_count_for_nothing(reduction: Reduction) -> None:
    """Whatever stands in a masked step, the loss is the same and has no gradient there."""
    changed = {
        name: tf.Variable(array + 100.0 * (1.0 - STEPS["valid"]))
        for name, array in STEPS.items()
        if name != "valid"
    }
    with tf.GradientTape() as tape:
        terms = loss(reduction, **changed)
    np.testing.assert_allclose(terms, loss(reduction), rtol=1e-6)
    sources = [changed["log_probs"], changed["entropies"], changed["values"]]
    for gradient in tape.gradient(terms.total, sources):
        assert gradient[1, 1] == 0.0
        assert np.count_nonzero(gradient) == 3


def test_policy_term_has_no_gradient_for_the_values() -> None:
    """-log pi(a|s) * stop_gradient(A), even where A is computed from the values."""
    values = tf.Variable(STEPS["values"])
    with tf.GradientTape() as tape:
        terms = loss(values=values, advantages=STEPS["returns"] - values)
    assert tape.gradient(terms.policy, values) is None


def test_value_term_learns_from_constant_returns() -> None:
    """The gradient of (R - V)^2 is that with respect to V alone, R being stopped."""
    values = tf.Variable(STEPS["values"])
    bootstrap = tf.Variable(STEPS["returns"])
    with tf.GradientTape() as tape:
        terms = loss("sum", values=values, returns=bootstrap + values - STEPS["values"])
    of_values, of_returns = tape.gradient(terms.value, [values, bootstrap])
    np.testing.assert_allclose(
        of_values, -2.0 * (STEPS["returns"] - STEPS["values"]) * STEPS["valid"]
    )
    assert of_returns is None


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_no_valid_step(reduction: Reduction) -> None:
    """Zero loss and zero gradients, not 0 / 0."""
    values = tf.Variable(STEPS["values"])
    with tf.GradientTape() as tape:
        terms = loss(reduction, values=values, valid=np.zeros((2, 2), np.float32))
    assert np.array_equal(terms, [0.0] * 4)
    assert not tape.gradient(terms.total, values).numpy().any()


@pytest.mark.parametrize("action", [0, 1])
def test_extreme_logits(action: int) -> None:
    """Logits of +-1e4 give finite loss, entropy and gradients, for either action."""
    logits = tf.Variable([[[1e4, -1e4], [-1e4, 1e4]]])
    with tf.GradientTape() as tape:
        distribution = Categorical(logits)
        terms = a3c_loss(
            distribution.log_prob(tf.fill((1, 2), action)),
            distribution.entropy(),
            tf.zeros((1, 2)),
            tf.ones((1, 2)),
            tf.ones((1, 2)),
            valid=tf.ones((1, 2)),
            entropy_coefficient=0.01,
        )
    assert np.isfinite(terms).all()
    assert np.isfinite(tape.gradient(terms.total, logits)).all()


def variance_explained(values: Any, returns: Any, valid: Any = (1.0, 1.0, 1.0)) -> float:
    """`explained_variance` of one environment's steps."""
    arrays: list[npt.NDArray[np.float32]] = [
        np.array(numbers, np.float32)[:, None] for numbers in (values, returns, valid)
    ]
    return float(explained_variance(*arrays))


@pytest.mark.parametrize(
    ("values", "expected"), [((1, 2, 6), 1.0), ((5, 5, 5), 0.0), ((-1, -2, -6), -3.0)]
)
def test_explained_variance(values: Any, expected: float) -> None:
    """1 - Var[R - V] / Var[R]."""
    assert variance_explained(values, (1, 2, 6)) == pytest.approx(expected, abs=1e-6)


def test_explained_variance_of_equal_returns() -> None:
    """0, not 0 / 0."""
    assert variance_explained((1, 2, 3), (4, 4, 4)) == 0.0


def test_explained_variance_ignores_reset_steps() -> None:
    """A masked step counts for nothing."""
    assert variance_explained((1, 2, 99), (1, 2, 0), (1, 1, 0)) == pytest.approx(1.0)
