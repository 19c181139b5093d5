"""Notes calls of Keras that train a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from hvd_keras._common import training_signs, user_code
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras._keras import names
from hvd_keras._keras.lookup import private_module

_CURE = (
    "Wrap the optimizer in `hvd.DistributedOptimizer`, or the tape in "
    "`hvd.DistributedGradientTape`"
)


def install() -> None:
    """Notes updates of optimizers."""
    for owner in keras.optimizers.Optimizer.__mro__:
        if "apply" in vars(owner):
            replace(owner, "apply", _noting)
    replace(_Variable, "assign", _seeing)


_Variable: Any = private_module("backend.common.variables").Variable
_num_applying = 0
_num_applied = 0


@contextlib.contextmanager
def in_fit() -> Iterator[None]:
    """Notes a call of `fit`, while it runs."""
    num_before, is_first = _num_applied, training_signs.first is None
    training_signs.note("`fit`", _CURE)
    before = training_signs.place_of_fit
    training_signs.place_of_fit = before or user_code.place()
    try:
        yield
    except BaseException:
        if is_first and _num_applied == num_before:
            training_signs.forget()  # it has trained nothing
        raise
    finally:
        training_signs.place_of_fit = before


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, *args: Any, **kw: Any) -> Any:
        training_signs.note(
            f"the optimizer {type(self).__name__}",
            _CURE,
            reduces=hasattr(type(self), "hvd_settings"),
        )
        global _num_applying, _num_applied
        _num_applying += 1
        _num_applied += 1
        try:
            result = original(self, *args, **kw)
        finally:
            _num_applying -= 1
        training_signs.note_optimizer(self, _trained_by)
        return result

    return apply


def _seeing(original: Callable[..., Any]) -> Callable[..., Any]:
    @as_it_is
    def assign(self: Any, *args: Any, **kw: Any) -> Any:
        if not _num_applying and getattr(self, "_hvd_is_trained", False):
            training_signs.note_change()
        return original(self, *args, **kw)

    return assign


def _trained_by(optimizer: Any) -> list[Any]:
    """Returns what an optimizer has trained, without what is local."""
    part = getattr(optimizer, "inner_optimizer", optimizer)
    settings = getattr(part, "hvd_settings", None)
    # What a state of JAX holds may be newer.
    if keras.backend.backend() == "jax" or (
        settings is not None and settings.local_updates is not None
    ):
        return []
    local = {id(variable) for variable in getattr(part, "hvd_local", ())}
    found = [
        variable
        for variable in names.trainable_variables_of(optimizer)
        if id(variable) not in local
        and not getattr(variable, "_hvd_is_local", False)
        and "float" in str(variable.dtype)
    ]
    for variable in found:
        variable._hvd_is_trained = True
    return found
