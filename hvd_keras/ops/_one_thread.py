"""Runs functions eagerly in a `tf.py_function` if TensorFlow has one thread.

`hvdrun` sets `TF_NUM_INTEROP_THREADS=1` if a rank has one core. Then a
`tf.py_function` in a graph holds the only thread that graphs run on. A
`tf.function` that it calls would wait for that thread for ever. So TensorFlow
runs such a function op by op, as after `tf.config.run_functions_eagerly(True)`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager.polymorphic_function import (
    eager_function_run,
    polymorphic_function,
)
from tensorflow.python.ops import script_ops

from hvd_keras._common.replacements import replace

_inside = threading.local()


def is_set() -> bool:
    """Whether TensorFlow was told to have one inter-op thread."""
    return os.environ.get("TF_NUM_INTEROP_THREADS") == "1"


def install() -> None:
    """Patches TensorFlow if it has one inter-op thread."""
    if is_set():
        function = polymorphic_function.Function
        replace(script_ops.EagerFunc, "__call__", _counting)
        replace(
            function,
            "_run_functions_eagerly",
            lambda _: property(_runs_eagerly),
        )


def _counting(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any) -> Any:
        _inside.depth = _depth() + 1
        try:
            return original(self, *arguments)
        finally:
            _inside.depth -= 1

    return call


def _runs_eagerly(_: Any) -> bool:
    return eager_function_run.RUN_FUNCTIONS_EAGERLY or _depth() > 0


def _depth() -> int:
    """Returns how many `tf.py_function` calls this thread is inside."""
    return getattr(_inside, "depth", 0)
