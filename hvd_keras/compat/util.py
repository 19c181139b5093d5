"""`horovod.tensorflow.util`: helpers that programs borrow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = [
    "_cache",
    "_executing_eagerly",
    "_make_subgraph",
    "refs_to_vars",
    "vars_to_refs",
]


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = tf.function(function)
    return compiled


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.cache(function)


def vars_to_refs(variables: Any) -> Any:
    """Returns variables, or nested lists of them, as hashable references."""
    if isinstance(variables, list | tuple):
        return tuple(vars_to_refs(each) for each in variables)
    return variables.ref()


def refs_to_vars(references: Any) -> Any:
    """Returns the variables that `vars_to_refs` was given."""
    if isinstance(references, list | tuple):
        return [refs_to_vars(each) for each in references]
    return references.deref()
