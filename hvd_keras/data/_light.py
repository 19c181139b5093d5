"""Functions of ours in a `tf.data.Dataset` that TensorFlow does not optimize.

TensorFlow optimizes each function of a dataset anew for each iterator, so in
each epoch: 5 ms of the processor for a function of a few ops, which gain
nothing. It leaves functions out whose integers stay on the device, as it makes
them itself for iterators over several devices: they run on one device alone,
which for tf.data is the CPU (TensorFlow's core/data/captured_function.cc).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras._common.autograph import Function, as_it_is

_ATTRIBUTES = {"experimental_ints_on_device": True}


def light(function: Function) -> Function:
    """Decorates a function of few ops; none of them may be the user's."""
    function._hvd_is_light = True  # type: ignore[attr-defined]
    return as_it_is(function)


def attributes_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns what TensorFlow must know of a function of a dataset."""
    is_light = getattr(function, "_hvd_is_light", False)
    return dict(_ATTRIBUTES) if is_light else {}
