"""Makes equal what N ranks and one process draw or normalize differently.

| What | In the comparison |
|---|---|
| random numbers in a step, dropout among them | the same for each row |
| plain `BatchNormalization` | takes the statistics of the whole batch |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras._keras import normalization
from hvd_keras._keras.lookup import private_module
from hvd_keras._verify import draws, telling
from hvd_keras._verify.session import Session
from hvd_keras.layers._moments import global_moments
from hvd_keras.process_set import global_process_set

# Of epsilon: below it a layer divides by epsilon alone, and makes large what
# rounding leaves of rows that are alike.
_LEAST_VARIANCE = 1e-4
_SHAPED = ("normal", "uniform", "truncated_normal", "randint")


def install(session: Session) -> None:
    """Changes Keras in this process; `session` notes where it matters."""
    random: Any = private_module("backend").random
    for name in _SHAPED:
        replace(random, name, _shaped(session, name))
    replace(random, "dropout", _dropout(session))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        for name in ("normal", "uniform", "truncated_normal"):
            replace(tf.random, name, _of_tensorflow(session, name))
    replace(keras.layers.BatchNormalization, "_moments", _whole(session))


def _shaped(session: Session, name: str) -> Any:
    def around(original: Any) -> Any:
        @as_it_is
        def draw(shape: Any, *args: Any, seed: Any = None, **kw: Any) -> Any:
            is_fixed = isinstance(seed, int) or not _is_in_step(session)
            if is_fixed or not _has_rows(shape):
                return original(shape, *args, seed=seed, **kw)
            session.note("drawn", name=f"keras.random.{name}")
            if session.is_of_rows(shape):
                draws.note_seed(session, seed)
            one = original(
                (1, *shape[1:]), *args, seed=session.next_draw(), **kw
            )
            return keras.ops.broadcast_to(one, tuple(shape))

        return draw

    return around


def _dropout(session: Session) -> Any:
    def around(original: Any) -> Any:
        @as_it_is
        def dropout(
            inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None
        ) -> Any:
            session.note("drawn", name="dropout")
            draws.note_dropout(session, seed)
            shape = noise_shape or [None] * len(inputs.shape)
            return original(inputs, rate, (1, *shape[1:]), session.next_draw())

        return dropout

    return around


def _of_tensorflow(session: Session, name: str) -> Any:
    import tensorflow as tf

    stateless = getattr(tf.random, f"stateless_{name}")

    def around(original: Any) -> Any:
        @as_it_is
        def draw(shape: Any, *args: Any, seed: Any = None, **kw: Any) -> Any:
            if not _is_in_step(session) or not _has_rows(shape):
                return original(shape, *args, seed=seed, **kw)
            session.note("drawn", name=f"tf.random.{name}")
            if session.is_of_rows(shape):
                draws.note_tensorflow(session)
            names = {
                "uniform": ("minval", "maxval", "dtype"),
            }.get(name, ("mean", "stddev", "dtype"))
            kw.update(zip(names, args, strict=False))
            kw.pop("name", None)
            if name == "uniform" and kw.get("maxval") is None:
                kw["maxval"] = 1
            one = stateless((1, *shape[1:]), (7, session.next_draw()), **kw)
            return tf.broadcast_to(one, shape)

        return draw

    return around


def _is_in_step(session: Session) -> bool:
    """Whether a step runs or is traced, that of a loop as well."""
    if session.is_in_step:
        return True
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return bool(tf.inside_function())
    if backend == "jax":
        import jax

        return not jax.core.trace_state_clean()
    return False


def _has_rows(shape: Any) -> bool:
    """Whether a shape may begin with rows, and can be taken apart."""
    try:
        return len(shape) > 0
    except (TypeError, ValueError):  # a tensor of unknown length
        return False


def _whole(session: Session) -> Any:
    def around(original: Any) -> Any:
        @as_it_is
        def _moments(self: Any, inputs: Any, mask: Any) -> Any:
            if not normalization.is_plain(self):
                return original(self, inputs, mask)
            session.note("synchronized", layer=self.name)
            if global_process_set.size() == 1:
                found = original(self, inputs, mask)
            else:
                found = global_moments(
                    inputs,
                    mask,
                    normalization.axes_of(self),
                    layer=self,
                    process_set=global_process_set,
                )
            telling.tell(note_alike(self), found[1:])
            return found

        return _moments

    def note_alike(layer: Any) -> Callable[[Any], None]:
        """Returns what notes that a layer has made rounding large."""

        def note(variance: Any) -> None:
            if np.max(variance) < _LEAST_VARIANCE * layer.epsilon:
                session.note("alike", layer=layer.name)

        return note

    return around
