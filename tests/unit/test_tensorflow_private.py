"""TensorFlow has the private names that the ops use.

If a release drops one, a test fails here and its docstring names the file.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os
from typing import Any

import tensorflow as tf

from hvd_keras import _native
from hvd_keras.ops import _xla_library


def test_collectives_can_be_taken_out_of_the_control_dependencies() -> None:
    """`ops/_emit.py`: otherwise they run one by one, and may hang."""
    managers = []

    @tf.function
    def trace() -> None:
        graph = tf.compat.v1.get_default_graph()
        managers.append(graph.experimental_acd_manager)

    trace()
    assert callable(managers[0].run_independently)
    assert tf.Graph().experimental_acd_manager is None


def test_xla_contexts_are_seen() -> None:
    """`ops/_xla.py`: otherwise an op raises that it has no XLA kernel."""
    from tensorflow.python.ops import control_flow_util

    seen = []

    @tf.function(jit_compile=True)
    def compiled() -> None:
        graph = tf.compat.v1.get_default_graph()
        seen.append(control_flow_util.GraphOrParentsInXlaContext(graph))

    @tf.function
    def plain() -> None:
        graph = tf.compat.v1.get_default_graph()
        seen.append(control_flow_util.GraphOrParentsInXlaContext(graph))

    compiled()
    plain()
    assert seen == [True, False]


def test_functions_are_traced_apart_inside_and_outside_of_xla() -> None:
    """`ops/_retracing.py`: otherwise XLA gets ops that it does not know."""
    from tensorflow.python.eager.polymorphic_function import function_context

    seen = []

    def trace() -> None:
        key = function_context.make_function_context().context
        seen.append(key.xla_context_id)

    for jit_compile in (True, False, True):
        tf.function(trace, jit_compile=jit_compile, autograph=False)()
    compiled, plain, again = seen
    assert compiled == again != plain


def test_a_resource_variable_is_not_seen_by_creators() -> None:
    """`ops/_xla.py`: otherwise a strategy takes the token for its own."""
    from tensorflow.python.ops import resource_variable_ops

    seen = []

    def creator(next_creator: Any, **options: Any) -> Any:
        seen.append(options)
        return next_creator(**options)

    with tf.variable_creator_scope(creator):
        token = resource_variable_ops.ResourceVariable(0, dtype=tf.int64)
        tf.Variable(0)
    assert len(seen) == 1
    assert token.read_value().dtype == tf.int64


def test_xla_takes_handlers_and_calls_them() -> None:
    """`ops/_xla_library.py`: otherwise XLA cannot compile collectives."""
    library = ctypes.CDLL(_xla_library._TENSORFLOW_CC, mode=os.RTLD_NOLOAD)
    assert library[_xla_library._GET_API]
    call_module = importlib.import_module(_xla_library._MODULE).call_module
    parameters = inspect.signature(call_module).parameters
    assert set(parameters) >= {"version", "module", "Sout", "Tout", "platforms"}
    assert _xla_library.problem() is None
    assert _xla_library.call_module() is call_module
    # Handlers for GPUs register too, in a TensorFlow without GPUs.
    api = library[_xla_library._GET_API]
    api.restype = ctypes.c_void_p
    register = _native.xla().HvdXlaRegister
    assert register(api(), _xla_library.blocks(), True) is None


def test_xla_fills_in_lengths_that_are_known_later() -> None:
    """`ops/_stablehlo.py`: otherwise tracing must know all lengths."""
    text = """
        module @m attributes {jax.uses_shape_polymorphism = true} {
          func.func public @main(%x: tensor<?xf32>) -> tensor<?xf32> {
            return %x : tensor<?xf32>
          }
        }"""

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None])])
    def compiled(x: tf.Tensor) -> tf.Tensor:
        (y,) = _xla_library.call_module()(
            [x],
            version=9,
            module=text,
            Sout=[[None]],
            Tout=[tf.float32],
            platforms=["CPU"],
        )
        return y

    assert compiled(tf.ones([3])).shape == [3]


def test_errors_take_payloads() -> None:
    """`ops/_errors.py`: otherwise ops raise TensorFlow's classes only."""
    payloads = {b"key": b"value"}
    error = tf.errors.AbortedError(None, None, "text", payloads)
    assert error.experimental_payloads == payloads


def test_a_function_waits_for_the_side_effects_of_an_iteration() -> None:
    """`iterations_may_overlap`: otherwise names of collectives clash."""
    seen = []

    def body(i: tf.Tensor) -> tf.Tensor:
        tf.numpy_function(lambda x: seen.append(int(x)), [i], [])
        return i + 1

    @tf.function(autograph=False)
    def loop() -> tf.Tensor:
        return tf.while_loop(
            lambda i: i < 50, body, [tf.constant(0)], parallel_iterations=10
        )

    loop()
    assert seen == list(range(50))


def test_autograph_knows_its_own_mark() -> None:
    """`_common/autograph.py`: otherwise it spends seconds rewriting ops."""

    @tf.autograph.experimental.do_not_convert
    def function() -> None:
        """Does nothing."""

    assert hasattr(function, "autograph_info__")


def test_functions_can_be_run_eagerly_inside_a_py_function() -> None:
    """`ops/_one_thread.py`: otherwise they wait for the thread it holds."""
    functions = importlib.import_module(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function"
    )
    run = importlib.import_module(
        "tensorflow.python.eager.polymorphic_function.eager_function_run"
    )
    scripts = importlib.import_module("tensorflow.python.ops.script_ops")
    assert isinstance(functions.Function._run_functions_eagerly, property)
    assert run.RUN_FUNCTIONS_EAGERLY is False
    assert callable(scripts.EagerFunc.__call__)
