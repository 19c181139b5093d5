"""Keeps AutoGraph out of our functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def as_it_is(function: Function) -> Function:
    """Decorates a function that a `tf.function` calls, and must not rewrite.

    AutoGraph rewrites what a `tf.function` calls, and what that calls in turn.
    Nothing of ours needs it, and the first trace would take a second longer.
    The mark is that of `tf.autograph.experimental.do_not_convert`, without the
    wrapper around the function, which would cost each eager call a tenth of
    its time.
    """
    function.autograph_info__ = {}  # type: ignore[attr-defined]
    return function
