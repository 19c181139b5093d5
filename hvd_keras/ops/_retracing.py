"""Traces a function again if XLA compiles one of its calls but not another."""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.python.eager.polymorphic_function import function_context


class _XlaContext:
    """Stands for every XLA context in the key of a trace."""

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802
        return True


@functools.cache
def install() -> None:
    """Makes TensorFlow trace a `tf.function` anew for XLA; patches once.

    Otherwise TensorFlow would reuse a trace from outside XLA. The collectives
    in that trace are ops that XLA cannot compile.
    """
    original = function_context._enclosing_xla_context
    any_context = _XlaContext()

    def enclosing_xla_context() -> Any:
        found = original()
        if found is None or found.RequiresUniqueFunctionRetracing():
            return found
        return any_context

    function_context._enclosing_xla_context = enclosing_xla_context
