"""Keeps AutoGraph out of our functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def as_it_is(function: Function) -> Function:
    """Decorates a function that AutoGraph must not rewrite.

    AutoGraph rewrites all functions that a `tf.function` calls, directly or
    not. Ours do not need that, and the first trace would take a second longer.
    `tf.autograph.experimental.do_not_convert` sets the same mark, but it also
    wraps the function, which would make each eager call 10% slower.
    """
    function.autograph_info__ = {}  # type: ignore[attr-defined]
    return function
