"""Compiled functions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from a3c_tf.graphs import CompiledFunction, Tensor, flatten, unflatten
from a3c_tf.quiet import keras, tf

SCALAR = tf.TensorSpec([], tf.float32)


class Counter:
    """Adds to a variable of its own, and counts how often its Python code runs."""

    def __init__(self, start: float, like: CompiledFunction | None = None) -> None:
        self.total = tf.Variable(start)
        self.runs = 0
        self.add = CompiledFunction(self._add, [SCALAR], [self.total], like)

    def _add(self, amount: Tensor) -> Sequence[Tensor]:
        self.runs += 1
        return [self.total.assign_add(amount)]


def test_traced_once() -> None:
    """In the constructor, and never again."""
    counter = Counter(10.0)
    for _ in range(3):
        (total,) = counter.add(tf.constant(2.0))
    assert total == 16.0
    assert counter.runs == counter.add.trace_count == 1


def test_another_owner_uses_the_trace_with_its_own_variables() -> None:
    """`like`: nothing is traced, and the first owner's variables are left alone."""
    first = Counter(10.0)
    second = Counter(100.0, like=first.add)
    third = Counter(1000.0, like=second.add)
    assert second.add(tf.constant(1.0))[0] == 101.0
    assert third.add(tf.constant(2.0))[0] == 1002.0
    assert [counter.total.numpy() for counter in (first, second, third)] == [10.0, 101.0, 1002.0]
    assert second.runs == second.add.trace_count == third.runs == 0


def test_owners_with_different_variables() -> None:
    """The variables must correspond one to one."""
    first = Counter(10.0)
    with pytest.raises(ValueError, match="zip"):
        CompiledFunction(first._add, [SCALAR], [], like=first.add)


def test_line_by_line(eagerly: None) -> None:
    """The Python code itself runs at each call."""
    counter = Counter(10.0)
    for _ in range(2):
        (total,) = counter.add(tf.constant(1.0))
    assert total == 12.0
    assert counter.runs == 2


def test_control_flow() -> None:
    """A graph with a branch or a loop in it works too, on an executor that knows them."""
    branch = CompiledFunction(lambda x: [tf.cond(x > 0.0, lambda: x, lambda: -x)], [SCALAR])
    assert branch(tf.constant(-2.0))[0] == 2.0
    recurrent = keras.layers.SimpleRNN(1)
    recurrent.build((1, 2, 1))
    loop = CompiledFunction(lambda x: [recurrent(x)], [tf.TensorSpec([1, 2, 1], tf.float32)])
    assert loop(tf.zeros([1, 2, 1]))[0] == 0.0


def test_flat_and_back() -> None:
    """`unflatten` gives what `flatten` took, in the variables' shapes."""
    variables = [
        tf.Variable(tf.reshape(tf.range(6.0), shape)) for shape in ([2, 3], [6], [3, 1, 2])
    ]
    vector = flatten(variables)
    assert vector.shape == (18,)
    for part, variable in zip(unflatten(vector, variables), variables, strict=True):
        assert part.shape == variable.shape
        assert tf.reduce_all(part == variable)
