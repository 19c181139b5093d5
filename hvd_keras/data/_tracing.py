"""How TensorFlow traces the functions of a `tf.data.Dataset`.

It optimizes each function of a dataset anew for each iterator, so in each
epoch: 5 ms of the processor for a function of a few ops, which gain nothing. It
takes a function as it is if `experimental_ints_on_device` is set, as in its own
functions for iterators over several devices. Such a function runs on one device
alone, which is the CPU for tf.data (core/data/captured_function.cc).

| Private name of TensorFlow | Used to |
|---|---|
| `StructuredFunctionWrapper.__init__` (wrapped) | trace so, and by own seeds |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras._common.autograph import Function, as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras._keras.lookup import require


def unoptimized(function: Function) -> Function:
    """Decorates a function of ours for a dataset: it is traced as it is.

    It may have few ops, none of them the user's. From the first one on,
    functions behind shares are traced with the rank's own seed, too.
    """
    from tensorflow.python.data.ops import structured_function

    owner = require(structured_function, "StructuredFunctionWrapper")
    replace(owner, "__init__", _tracing)
    function._hvd_is_unoptimized = True  # type: ignore[attr-defined]
    return as_it_is(function)


def _tracing(original: Callable[..., None]) -> Callable[..., None]:
    from hvd_keras.data import _random_maps  # it needs TensorFlow

    def __init__(  # noqa: N807
        self: Any, func: Any, *args: Any, **kw: Any
    ) -> None:
        if hasattr(func, "_hvd_is_unoptimized"):
            attributes = kw.get("defun_kwargs") or {}
            attributes = {**attributes, "experimental_ints_on_device": True}
            kw["defun_kwargs"] = attributes
        dataset = kw.get("dataset", args[1] if len(args) > 1 else None)
        with _random_maps.own_seeds(dataset, self):
            original(self, func, *args, **kw)

    return __init__
