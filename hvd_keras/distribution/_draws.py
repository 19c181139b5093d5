"""Tells of random numbers in the training steps of an unchanged script.

Ranks draw other numbers than one process does, for their own rows, or all draw
the same ones. Neither is what one process has.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import keras
import numpy as np

from hvd_keras import basics
from hvd_keras._common import log
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras._keras.lookup import private_module
from hvd_keras._keras.steps import running_step

_backend: Any = private_module("backend")

_OF_KERAS = (
    "normal uniform truncated_normal randint categorical gamma binomial beta "
    "shuffle dropout"
)
_OF_TENSORFLOW = "normal uniform truncated_normal categorical shuffle gamma"
_OF_JAX = (
    "normal uniform truncated_normal randint categorical bernoulli permutation "
    "gumbel"
)
_OF_TORCH = (
    "bernoulli multinomial normal rand rand_like randint randint_like randn "
    "randn_like randperm"
)
_OF_NUMPY = (
    "binomial choice normal permutation rand randint randn random shuffle "
    "standard_normal uniform"
)

_told: set[bool] = set()  # whether it was of numbers that ranks have in common
_num_drawn = 0  # calls in training steps


def num_drawn() -> int:
    """Returns how often training steps have drawn or were traced to do so.

    On rank 0; 0 elsewhere.
    """
    return _num_drawn


def watch() -> None:
    """Watches what draws random numbers in this process, on rank 0."""
    if basics.rank() != 0 or basics.size() == 1:
        return
    for name in _OF_KERAS.split():
        if hasattr(_backend.random, name):
            replace(_backend.random, name, _watched("keras.random", name))
    for name in _OF_NUMPY.split():
        replace(np.random, name, _watched("np.random", name, is_same=True))
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        for name in _OF_TENSORFLOW.split():
            replace(tf.random, name, _watched("tf.random", name))
        for name in ("normal", "uniform", "truncated_normal"):
            generator = tf.random.Generator
            make = _watched("tf.random.Generator", name, is_same=True)
            replace(generator, name, make)
            name = f"stateless_{name}"
            make = _watched("tf.random", name, is_same=True)
            replace(tf.random, name, make)
    elif backend == "jax":
        import jax

        for name in _OF_JAX.split():
            make = _watched("jax.random", name, is_same=True)
            replace(jax.random, name, make)
    elif backend == "torch":
        import torch

        for name in _OF_TORCH.split():
            replace(torch, name, _watched("torch", name))


def _watched(package: str, name: str, *, is_same: bool = False) -> Any:
    """Returns what puts another function around one that draws.

    Args:
        package: How scripts call the module.
        name: The function.
        is_same: Whether ranks draw the same numbers.
    """

    def around(original: Any) -> Any:
        @as_it_is
        @functools.wraps(original)
        def draw(*args: Any, **kw: Any) -> Any:
            step = running_step()
            if step is not None and step.training:
                global _num_drawn
                _num_drawn += 1
                seed = kw.get("seed")
                is_fixed = package == "keras.random" and isinstance(seed, int)
                is_fixed = is_fixed or kw.get("generator") is not None
                _tell(f"{package}.{name}", is_same=is_same or is_fixed)
            return original(*args, **kw)

        return draw

    return around


def _tell(function: str, *, is_same: bool) -> None:
    # Keras draws by the functions of its backend; `K.random_normal` takes a
    # seed of an op from NumPy.
    caller = sys._getframe(2).f_globals.get("__name__", "")
    keras_code = _backend.__name__.removesuffix(".backend")
    of_keras = _backend.__name__, f"{keras_code}.legacy.backend"
    is_of_keras = caller.startswith(of_keras)
    if is_same in _told or (is_of_keras and is_same):
        return
    _told.add(is_same)
    log.info(
        f"steps of `fit` draw random numbers, by `{function}`: "
        + (
            f"all {basics.size()} ranks draw the same ones, each for rows of "
            "its own. One process draws others for each row. Take "
            "`keras.random`, without a seed."
            if is_same
            else "each rank draws its own, so the weights end near those of "
            "one process, and not equal to them."
        )
    )
