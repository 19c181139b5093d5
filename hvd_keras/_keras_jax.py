"""The private names that hvd_keras leans on with Keras on JAX.

| Name | Used to |
|---|---|
| `Trainer.make_train_function` (public, patched) | keep a model that fails |
| `Trainer._make_function` | the same |
| `Trainer._jax_state`, `_jax_state_synced`, `jax_state_sync` | the same |
| `Trainer._get_jax_state` | restore a model in the middle of an epoch |
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import keras

from hvd_keras._keras_private import require

_STATE = (
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
)


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(
        keras.Model,
        "_make_function",
        ["self", "step_function", "concatenate_outputs"],
    )
    require(keras.Model, "make_train_function", ["self", "force"])
    require(keras.Model, "jax_state_sync", ["self"])
    require(
        keras.Model,
        "_get_jax_state",
        ["self", *_STATE, "purge_model_variables"],
    )


def patch_make_train_function(
    guards: Callable[[Any], bool],
    typed_errors: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    """Lets a model for which `guards(model)` outlive a step that fails.

    Keras gives the memory of the model to a step, which leaves nothing if it
    fails. Here a step makes new values, and when it fails the model has those
    that it had before. A second call does nothing.

    Args:
        guards: Whether the steps of a model may fail because of another rank.
        typed_errors: Makes the context in which a step runs.
    """
    name = "make_train_function"
    owner: Any = next(c for c in keras.Model.__mro__ if name in vars(c))
    original = getattr(owner, name)
    if hasattr(original, "_hvd_wrapped"):
        return

    @functools.wraps(original)
    def make_train_function(self: Any, force: bool = False) -> None:
        if self.train_function is not None and not force:
            return
        original(self, force)
        # Values that are spread over devices stay Keras's matter.
        if guards(self) and keras.distribution.distribution() is None:
            step = self.train_step
            if self.jit_compile and not self.run_eagerly:
                step = jax.jit(step)
            self.train_function = _guarded(
                self, self._make_function(step), typed_errors
            )

    make_train_function._hvd_wrapped = True  # type: ignore[attr-defined]
    # Keras compares a model's method with this one: it is not overridden.
    owner.make_train_function = make_train_function


def _guarded(
    model: Any,
    function: Callable[..., Any],
    typed_errors: Callable[[], contextlib.AbstractContextManager[None]],
) -> Callable[..., Any]:
    def step(state: Any, iterator: Any) -> Any:
        try:
            with typed_errors():
                return jax.block_until_ready(function(state, iterator))
        except StopIteration:  # the data have ended: no step was done
            raise
        except BaseException:
            _give_state(model, state)
            raise

    return step


def _give_state(model: Any, state: Any) -> None:
    """Gives the variables of a model the values that `fit` holds."""
    model._jax_state = dict(zip(_STATE, state, strict=True))
    model._jax_state_synced = False
    model.jax_state_sync()


def changed_state(model: Any, state: Any, change: Callable[[], None]) -> Any:
    """Returns what `state` is after `change`, which assigns to variables."""
    _give_state(model, state)
    change()
    changed = model._get_jax_state(
        **dict.fromkeys(_STATE, True), purge_model_variables=True
    )
    model._jax_state_synced = False
    return changed


check_names()
