"""Traces a function again where its collectives must be others.

That is so if XLA compiles one of its calls but not another, and if the members
of an elastic job have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.eager.polymorphic_function import function_context

from hvd_keras._common.replacements import replace
from hvd_keras._job import membership


class _XlaContext:
    """Stands for every XLA context in the key of a trace."""

    def RequiresUniqueFunctionRetracing(self) -> bool:  # noqa: N802
        return True


def install() -> None:
    """Makes TensorFlow trace a `tf.function` anew.

    Otherwise TensorFlow would reuse a trace from outside XLA. The collectives
    in that trace are ops that XLA cannot compile. It would also reuse a trace
    from before a change of the members. That one has the names and the number
    of ranks of then, which new ranks do not have.
    """
    replace(function_context, "_enclosing_xla_context", _knowing_xla)
    replace(function_context, "make_function_context", _knowing_members)


def _knowing_xla(original: Callable[[], Any]) -> Callable[[], Any]:
    any_context = _XlaContext()

    def enclosing_xla_context() -> Any:
        found = original()
        if found is None or found.RequiresUniqueFunctionRetracing():
            return found
        return any_context

    return enclosing_xla_context


def _knowing_members(make: Callable[[Any], Any]) -> Callable[..., Any]:
    def make_function_context(scope_type: Any = None) -> Any:
        made = make(scope_type)
        generation = membership.trace_generation()
        if generation <= 1 or not membership.is_elastic():
            return made
        return made._replace(context=(made.context, generation))

    return make_function_context
