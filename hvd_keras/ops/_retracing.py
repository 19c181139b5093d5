"""Functions that are called where XLA compiles, and elsewhere too."""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.python.eager.polymorphic_function import function_context


class _XlaContext:
    """Stands for all of XLA's contexts in the key of a trace."""

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802
        return True


@functools.cache
def install() -> None:
    """Makes TensorFlow trace a `tf.function` anew for XLA; idempotent.

    It would take a trace that it has from outside, whose collectives are ops
    that XLA cannot compile.
    """
    original = function_context._enclosing_xla_context
    any_context = _XlaContext()

    def enclosing_xla_context() -> Any:
        found = original()
        if found is None or found.RequiresUniqueFunctionRetracing():
            return found
        return any_context

    function_context._enclosing_xla_context = enclosing_xla_context
