"""The private names of Keras that hvd_keras uses only on JAX.

| Name | Used to |
|---|---|
| `Trainer._make_function` | keep a model whose step fails |
| `Trainer._jax_state`, `_jax_state_synced`, `jax_state_sync` | the same |
| `Trainer._get_jax_state` | restore a model in the middle of an epoch |
| `distribution_lib.distribution` | know whether Keras spreads values |
| `Variable._value` | compare the weights of ranks while a step is traced |
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras

from hvd_keras._common.replacements import replace
from hvd_keras._keras.calls import at_end_of_fit
from hvd_keras._keras.lookup import owner_of, private_module, require
from hvd_keras._keras.steps import own_method_of, running_step

_distribution: Any = private_module("distribution.distribution_lib")
_STATE = (
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
)

# Larger arrays get spare memory. For smaller ones, the additional arguments of
# a program would cost more time than new memory does.
_LARGE_BYTES = 1 << 16


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(keras.Model, "_make_function")  # more parameters from 3.16 on
    require(keras.Model, "make_train_function", ["self", "force"])
    require(keras.Model, "jax_state_sync", ["self"])
    require(_distribution, "distribution", [])
    require(
        keras.Model,
        "_get_jax_state",
        ["self", *_STATE, "purge_model_variables"],
    )


def patch_make_train_function(
    guards: Callable[[Any], bool],
    typed_errors: Callable[[], contextlib.AbstractContextManager[None]],
    look: Callable[[Any, Any, int], None],
) -> None:
    """Makes a model survive a failing step if `guards(model)`.

    Keras gives the model's memory to a step, so the values are lost if the step
    fails. Here a step writes elsewhere. If it fails, the model has the values
    that it had before.

    Args:
        guards: Whether the steps of a model may fail because of another rank.
        typed_errors: Makes the context in which a step runs.
        look: Looks at the program of a step before it runs: its model, jaxpr,
            number of arguments before those of the batch.
    """

    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def make_train_function(self: Any, force: bool = False) -> None:
            if self.train_function is not None and not force:
                return
            original(self, force)
            # If values are spread over devices, Keras handles the step alone.
            # A distribution over our ranks spreads none: Keras's own question
            # does not know of it.
            if guards(self) and _distribution.distribution() is None:
                step = self.train_step
                if self.jit_compile and not self.run_eagerly:
                    step = _compiled(
                        step,
                        self.steps_per_execution,
                        functools.partial(look, self),
                    )
                self.train_function = _guarded(
                    self, self._make_function(step), typed_errors
                )
                self.train_function.forget = getattr(step, "forget", None)

        return make_train_function

    name = "make_train_function"
    # Keras compares a model's method with this one to see if it is overridden.
    replace(owner_of(name), name, making)
    at_end_of_fit.add(_forget)


def watch_own_steps(mark: Callable[[Any], Any]) -> None:
    """Looks at what a `train_step` of the user's differentiates.

    Args:
        mark: Marks a loss, whose gradients are looked at later.
    """

    def differentiating(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def transform(fun: Any, *args: Any, **kw: Any) -> Any:
            @functools.wraps(fun)
            def noting(*arguments: Any, **more: Any) -> Any:
                result = fun(*arguments, **more)
                step = running_step()
                if step is None or step.batch is None or not step.training:
                    return result
                if own_method_of(step.model, training=True) is None:
                    return result
                has_aux = isinstance(result, tuple)
                loss, *others = result if has_aux else (result,)
                if not step.batch.has_weight:
                    step.batch.look_for_sums(loss)
                return (mark(loss), *others) if has_aux else mark(loss)

            return original(noting, *args, **kw)

        return transform

    for name in ("grad", "value_and_grad"):
        replace(jax, name, differentiating)


def _forget(model: Any) -> None:
    """Drops the previous state when training ends."""
    function: Any = getattr(model, "train_function", None)
    while hasattr(function, "train_function"):  # a StepHook
        function = function.train_function
    forget = getattr(function, "forget", None)
    if forget is not None:
        forget()


def _compiled(
    train_step: Callable[[Any, Any], Any],
    steps_per_execution: int,
    look: Callable[[Any, int], None],
) -> Callable[[Any, Any], Any]:
    """Compiles a step that does not overwrite its input state.

    The step writes its results over the state before that, which nobody needs
    any more. New memory in each step would cost more than the update itself.
    That older state is kept until `forget()` is called.
    """
    if steps_per_execution > 1:  # a failure goes back to the older state
        return jax.jit(train_step)
    compiled = jax.jit(
        lambda spare, state, data: train_step(state, data),
        donate_argnums=0,
        keep_unused=True,
    )
    before: list[jax.Array] = []
    is_seen = False

    def step(state: Any, data: Any) -> Any:
        nonlocal is_seen
        large = [a for a in jax.tree.leaves(state) if a.nbytes >= _LARGE_BYTES]
        spare = _spare(before, large)
        if not is_seen:
            is_seen = True
            program = compiled.trace(spare, state, data).jaxpr
            num_state = len(large) + len(jax.tree.leaves(state))
            look(program, num_state)
        before[:] = large
        return compiled(spare, state, data)

    step.forget = before.clear  # type: ignore[attr-defined]
    return step


def _spare(before: list[jax.Array], now: list[jax.Array]) -> list[jax.Array]:
    """Returns arrays like those of `now`, from `before` if they are free."""
    taken = set(map(id, now))
    spare = []
    for i, array in enumerate(now):
        old = before[i] if i < len(before) else array
        is_like = (old.shape, old.dtype) == (array.shape, array.dtype)
        if id(old) in taken or not is_like or old.is_deleted():
            old = jnp.zeros_like(array)
        taken.add(id(old))
        spare.append(old)
    return spare


def _guarded(
    model: Any,
    function: Callable[..., Any],
    typed_errors: Callable[[], contextlib.AbstractContextManager[None]],
) -> Callable[..., Any]:
    def step(state: Any, iterator: Any) -> Any:
        try:
            with typed_errors():
                return jax.block_until_ready(function(state, iterator))
        except StopIteration:  # the data have ended: no step ran
            raise
        except BaseException:
            _give_state(model, state)
            raise

    return step


def _give_state(model: Any, state: Any) -> None:
    """Assigns the values in `fit`'s state to the variables of a model."""
    model._jax_state = dict(zip(_STATE, state, strict=True))
    model._jax_state_synced = False
    model.jax_state_sync()


def value_outside_of_traces(variable: Any) -> Any:
    """Returns the array of a variable, also while a step is traced."""
    return getattr(variable, "_value", None)


def changed_state(model: Any, state: Any, change: Callable[[], None]) -> Any:
    """Returns `state` after `change`, which assigns to variables."""
    _give_state(model, state)
    change()
    changed = model._get_jax_state(
        **dict.fromkeys(_STATE, True), purge_model_variables=True
    )
    model._jax_state_synced = False
    return changed


check_names()
