"""Traces a function again where its collectives must be others.

That is so if XLA compiles one of its calls but not another, and if the members
of an elastic job have changed.
"""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.python.eager.polymorphic_function import function_context

from hvd_keras._job import membership


class _XlaContext:
    """Stands for every XLA context in the key of a trace."""

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802
        return True


@functools.cache
def install() -> None:
    """Makes TensorFlow trace a `tf.function` anew; patches once.

    Otherwise TensorFlow would reuse a trace from outside XLA. The collectives
    in that trace are ops that XLA cannot compile. It would also reuse a trace
    from before a change of the members. That one has the names and the number
    of ranks of then, which new ranks do not have.
    """
    original = function_context._enclosing_xla_context
    any_context = _XlaContext()

    def enclosing_xla_context() -> Any:
        found = original()
        if found is None or found.RequiresUniqueFunctionRetracing():
            return found
        return any_context

    function_context._enclosing_xla_context = enclosing_xla_context
    make = function_context.make_function_context

    def make_function_context(scope_type: Any = None) -> Any:
        made = make(scope_type)
        epoch = membership.trace_epoch()
        if epoch <= 1 or not membership.is_elastic():
            return made
        return made._replace(context=(made.context, epoch))

    function_context.make_function_context = make_function_context
