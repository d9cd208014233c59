"""Compiled functions: trace once, bind to every worker's variables, call with little overhead.

The learner enters TensorFlow twice an iteration, so the cost of one call matters: the exchange of
weights costs 443 us through its concrete function and 122 us through the raw call op
(docs/decisions.md). Everything that knows about executors and threads of TensorFlow is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from a3c_tf.quiet import tf

Tensor = Any  # tf.Tensor, symbolic or eager: TensorFlow has no types for the two
Function = Callable[..., Sequence[Tensor]]


def configure_tensorflow() -> None:
    """Gives every operation one thread, so that workers do not fight over the cores.

    TensorFlow accepts this only before its first operation. A program that has used TensorFlow
    before keeps its own setting: that is slower, not wrong.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError:  # TensorFlow is already running
        return


def forget_kernels() -> None:
    """Frees what TensorFlow keeps of the graphs of a run that has ended: megabytes for each.

    It is what `keras.backend.clear_session` does for this; the user's own nets are left alone.
    """
    from tensorflow.python.eager import context

    context.context().clear_kernel_cache()


def tf_variables(variables: Sequence[Any]) -> list[tf.Variable]:
    """The `tf.Variable`s behind Keras variables, in the same order."""
    return [variable.value for variable in variables]


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All elements of some tensors as one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unflatten(vector: Tensor, like: Sequence[tf.Variable]) -> list[Tensor]:
    """The inverse of `flatten`, for tensors shaped like some variables."""
    parts = tf.split(vector, [variable.shape.num_elements() for variable in like])
    return [tf.reshape(part, v.shape) for part, v in zip(parts, like, strict=True)]


class CompiledFunction:
    """A function of tensors as one graph, called at the cost of one TensorFlow operation.

    The trace is made in the constructor, with fixed shapes, and never again. Another worker
    uses the same trace with its own variables (`like`): the variables that a graph captures are
    ordinary inputs of the call, so the other worker's are passed in their place. A second
    trace would cost 0.6-2.6 s of CPU.

    Under `tf.config.run_functions_eagerly(True)` the Python function itself is called.

    Args:
        function: takes tensors that match `signature`, returns a flat sequence of tensors.
        signature: dtypes and shapes of the arguments.
        variables: the variables that belong to this worker alone, in an order that is the same
            for every worker.
        like: the same function of another worker, already traced.

    Attributes:
        trace_count: how often this object has traced `function`: 1, or 0 with `like`.
    """

    def __init__(
        self,
        function: Function,
        signature: Sequence[tf.TensorSpec],
        variables: Sequence[tf.Variable] = (),
        like: CompiledFunction | None = None,
    ) -> None:
        self.function = function
        self.variables = list(variables)
        self.trace_count = 0
        if tf.config.functions_run_eagerly():
            return
        if like is None:
            graph = tf.function(self._trace, autograph=False)
            self.concrete = graph.get_concrete_function(*signature)
            self._captured = list(self.concrete.captured_inputs)
        else:
            self.concrete = like.concrete
            ours = {
                id(theirs.handle): mine.handle
                for theirs, mine in zip(like.variables, self.variables, strict=True)
            }
            self._captured = [ours.get(id(tensor), tensor) for tensor in like._captured]
        self._output_types = [output.dtype for output in self.concrete.outputs]
        self._executor = _executor(self.concrete)

    def _trace(self, *arguments: Tensor) -> Sequence[Tensor]:
        self.trace_count += 1
        return self.function(*arguments)

    def __call__(self, *arguments: Tensor) -> Sequence[Tensor]:
        """Runs the function in the calling thread and returns its outputs, flat.

        Every argument must be a tensor: a number or an array would send the whole call down
        TensorFlow's slow path, which costs another 100 us.
        """
        if tf.config.functions_run_eagerly():
            return self.function(*arguments)
        outputs: Sequence[Tensor] = tf.raw_ops.StatefulPartitionedCall(
            args=[*arguments, *self._captured],
            Tout=self._output_types,
            f=self.concrete,
            executor_type=self._executor,
        )
        return outputs


CONTROL_FLOW = {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}


def _executor(concrete: Any) -> str:
    """The executor that runs a graph in the calling thread, where that is possible.

    It saves the hop to TensorFlow's thread pool, in which workers would queue behind each
    other. It knows one device only and neither loops nor branches: with a GPU, or where a net or
    an optimizer brings such operations along, TensorFlow's own executor is used.
    """
    graph = concrete.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    if tf.config.list_physical_devices("GPU") or any(node.op in CONTROL_FLOW for node in nodes):
        return ""
    return "SINGLE_THREADED_EXECUTOR"
