"""Notes what a rank draws random numbers from while it trains.

Ranks that draw from equal states draw the same numbers. That is a mistake for
numbers of rows, such as dropout and noise, and right for others. A state is
noted when numbers are drawn, or when that is traced.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any

import keras
import numpy as np

from hvd_keras._backends.options import path_of
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras._keras.lookup import private_module, require
from hvd_keras._verify.session import Session
from hvd_keras._verify.telling import tell

_OF_NUMPY = (
    "binomial choice exponential normal permutation poisson rand randint randn "
    "random random_sample shuffle standard_normal uniform"
)
_OF_TORCH = (
    "bernoulli multinomial normal rand rand_like randint randint_like randn "
    "randn_like randperm"
)


def install(session: Session) -> None:
    """Watches the generators of NumPy and torch in this process."""
    for name in _OF_NUMPY.split():
        replace(np.random, name, _watched(session, "np.random", _numpy_state))
    if keras.backend.backend() == "torch":
        import torch

        for name in _OF_TORCH.split():
            replace(torch, name, _watched(session, "torch", _torch_state))


def note_dropout(session: Session, seed: Any) -> None:
    """Notes that a layer drops out, in a step or in a loop of one's own."""
    if keras.backend.backend() == "torch":  # there Keras has torch draw
        session.draw("torch.*", _torch_state())
    else:
        note_seed(session, seed)


def note_seed(session: Session, seed: Any) -> None:
    """Notes what numbers of rows are drawn from by Keras.

    Args:
        session: The records.
        seed: None, or a generator of Keras; others are the script's.
    """
    if seed is None:
        found = _globals_of_keras()
        name = "keras.random.*"
    elif isinstance(seed, keras.random.SeedGenerator):
        found, name = seed, _name_of(seed)
    else:
        return
    if found is None:
        return
    # On JAX, a step has the states of its model, and variables have none.
    given = session.states.get(id(found.state))
    if given is not None:
        session.at_step_end.append(
            lambda: tell(
                lambda state: session.add_draw(name, digest(state)), [given]
            )
        )
        return
    state = _value_of(found.state)
    if state is not None:
        session.draw(name, state)


def note_tensorflow(session: Session) -> None:
    """Notes the seed of `tf.random`; each rank has its own if it set none."""
    from tensorflow.python.eager import context

    seed = context.global_seed()
    if seed is not None:
        session.draw("tf.random.*", digest(np.int64(seed)))


def _name_of(generator: Any) -> str:
    """Returns a name of a generator: that of the layer that draws from it."""
    scopes: Any = private_module("backend.common.name_scope")
    path = require(scopes, "current_path", [])()
    layer = path.rpartition("/")[2] if path else ""
    return f"layer {layer!r}" if layer else path_of(generator.state)


def _globals_of_keras() -> Any:
    """Returns the generator of `keras.random`; None if there is none yet."""
    key = require(private_module("random.seed_generator"), _GENERATOR)
    globals_of_keras: Any = private_module("backend.common.global_state")
    return globals_of_keras.get_global_attribute(key)


_GENERATOR = "GLOBAL_SEED_GENERATOR"


def _value_of(variable: Any) -> int | None:
    """Returns a digest of a variable's value before a step; None: unknown."""
    try:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.init_scope():
                return digest(np.asarray(variable.value))
        return digest(keras.ops.convert_to_numpy(variable))
    except Exception:  # a buffer of JAX that a step has used again
        return None


def _watched(session: Session, package: str, state: Any) -> Any:
    def around(original: Any) -> Any:
        @as_it_is
        @functools.wraps(original)
        def draw(*args: Any, **kw: Any) -> Any:
            if not session.is_in_step or kw.get("generator") is not None:
                return original(*args, **kw)
            before = state()
            result = original(*args, **kw)
            drawn = result if result is not None else args[0]  # `shuffle`
            shape = np.shape(drawn) if package == "np.random" else drawn.shape
            if session.is_of_rows(shape):
                session.draw(f"{package}.*", before)
            return result

        return draw

    return around


def _numpy_state() -> int:
    state: Any = np.random.get_state()
    return zlib.crc32(state[1].tobytes(), int(state[2]))


def _torch_state() -> int:
    import torch

    return digest(torch.get_rng_state().numpy())


def digest(array: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(array).tobytes())
