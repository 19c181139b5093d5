"""JAX: collectives are custom calls of XLA in the program of a train step."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvd_keras._backends.interface import Array, Backend, TensorInfo
from hvd_keras._backends.jax_products import products_of_rows
from hvd_keras._backends.jax_sums import are_changed, marked, sums_of_rows
from hvd_keras._backends.notes import Note
from hvd_keras._backends.options import ReduceOptions
from hvd_keras._keras import jax as keras_jax
from hvd_keras._values.calls import checked_reduction
from hvd_keras.compression import wire_format_of
from hvd_keras.jax._call import call, is_traced, program_of, together
from hvd_keras.jax.allreduce import allreduce
from hvd_keras.jax.errors import typed_errors
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, Min, Sum

# The token of the last reduction: reductions form a chain, see `call`.
_token: contextvars.ContextVar[Any] = contextvars.ContextVar("_token")

# Count the calls of each name, by the program that is being traced.
_numbers_of: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = (
    weakref.WeakKeyDictionary()
)


# What JAX has in the place of dtypes of Keras, unless they are switched on.
_HALVES = {
    "complex128": "complex64",
    "float64": "float32",
    "int64": "int32",
    "uint64": "uint32",
}


class JaxBackend(Backend):
    """Adapts JAX."""

    clips_each_batch = True
    wait_for_step = staticmethod(jax.block_until_ready)
    sums_of_rows = staticmethod(sums_of_rows)
    are_changed = staticmethod(are_changed)

    def grouped_allreduce(
        self,
        tensors: list[Any],
        *,
        name: str,
        options: ReduceOptions,
        postscale: float,
        seal: tuple[int, ...] | None = None,
    ) -> list[jax.Array]:
        prescale = 1.0 / options.gradient_predivide_factor
        op, prescale, postscale = checked_reduction(
            options.op, prescale, postscale
        )
        *results, token = call(
            "allreduce",
            tensors,
            name=name,
            process_set_id=options.process_set.process_set_id or 0,
            token=_token.get(),
            has_together=1,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
            wire_format=wire_format_of(options.compression),
        )
        _token.set(token)
        return results

    def together(self, gradients: list[Any]) -> list[Any]:
        return together(gradients)

    @contextlib.contextmanager
    def reducing(self, last: Any, device: str) -> Iterator[None]:
        reset = _token.set(jnp.int32(0))
        try:
            yield
        finally:
            _token.reset(reset)

    def reduce_if(
        self,
        condition: Any,
        reduce: Callable[[list[Any]], list[Any]],
        gradients: list[Any],
    ) -> list[Any]:
        if condition is None:
            return reduce(gradients)
        if not is_traced([condition]):
            return reduce(gradients) if condition else gradients
        reduced: list[Any] = jax.lax.cond(
            condition, lambda: reduce(gradients), lambda: gradients
        )
        return reduced

    def call_if(
        self, condition: Any, call: Callable[[], None], changes: Sequence[Any]
    ) -> None:
        # JAX discards what is assigned to variables inside a branch.
        before = [variable.value for variable in changes]
        call()
        for variable, value in zip(changes, before, strict=True):
            variable.assign(jnp.where(condition, variable.value, value))

    def mean_over_ranks(
        self,
        value: Any,
        name: str,
        process_set: ProcessSet,
        chain: list[Any],
    ) -> jax.Array:
        if not is_traced([value]):
            return allreduce(value, Average, name=name, process_set=process_set)
        # The ranks' programs differ where their batches do.
        op, prescale, postscale = checked_reduction(Average, 1.0, 1.0)
        mean, token = call(
            "allreduce",
            [value],
            name=name,
            process_set_id=process_set.process_set_id or 0,
            token=chain[-1] if chain else jnp.int32(0),
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
        )
        chain.append(token)
        return mean

    def all_true(self, flag: Any, name: str, process_set: ProcessSet) -> Any:
        mine = jnp.asarray(flag).astype("int32")
        everywhere = allreduce(mine, Min, name=name, process_set=process_set)
        return everywhere.astype("bool")

    def sum(self, tensor: Any, name: str, process_set: ProcessSet) -> Any:
        return allreduce(tensor, Sum, name=name, process_set=process_set)

    @property
    def has_float64(self) -> bool:
        return bool(jax.config.jax_enable_x64)

    def describe(self, variable: Any) -> TensorInfo:
        info = super().describe(variable)
        if self.has_float64 or info.dtype not in _HALVES:
            return info
        return dataclasses.replace(info, dtype=_HALVES[info.dtype])

    def sum_in_layer(
        self, tensor: Any, name: Callable[[], str], process_set: ProcessSet
    ) -> jax.Array:
        own = name()
        program = program_of(tensor)
        if program is not None:  # its calls may run at the same time
            numbers = _numbers_of.setdefault(program, collections.Counter())
            numbers[own] += 1
            own = f"{own}/{numbers[own]}"
        return allreduce(tensor, Sum, name=own, process_set=process_set)

    def make_note(self, size: int) -> Note:
        return _NoteOfCallbacks(size)

    def peek(self, variable: Any) -> Array | None:
        value = keras_jax.value_outside_of_traces(variable)
        if value is None or is_traced([value]) or value.is_deleted():
            return None
        return np.asarray(value)

    def held(self, value: Any) -> Array | None:
        if isinstance(value, jax.Array) and not is_traced([value]):
            return None if value.is_deleted() else np.asarray(value)
        return super().held(value)

    def prepare(
        self,
        reduces_over_ranks: Callable[[Any], bool],
        tell_of_products: Callable[[Any, list[str]], None],
    ) -> None:
        def look(model: Any, program: Any, num_state: int) -> None:
            tell_of_products(model, products_of_rows(program, num_state))

        keras_jax.patch_make_train_function(
            reduces_over_ranks, typed_errors, look
        )
        keras_jax.watch_own_steps(marked)

    def change_state(
        self, model: Any, state: list[Any], change: Callable[[], None]
    ) -> list[Any]:
        return [keras_jax.changed_state(model, state[0], change)]


class _NoteOfCallbacks(Note):
    """A note that a compiled step writes by calling Python."""

    def add(self, flags: Any) -> None:
        if is_traced([flags]):
            jax.debug.callback(self._add, flags)
        else:
            self._add(np.asarray(flags))

    def read(self) -> Array:
        jax.effects_barrier()
        return super().read()


BACKEND = JaxBackend()
