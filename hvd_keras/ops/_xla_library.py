"""Registers our handlers with TensorFlow's XLA, if it can take them."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_keras import _native
from hvd_keras._job import startup
from hvd_keras._native import gpu
from hvd_keras._native.libraries import NEWEST_TENSORFLOW, tensorflow_version

# The first with XLA's FFI 0.1; the first whose calls may return futures.
_OLDEST_WITH_XLA = (2, 18)
_OLDEST_WITH_FUTURES = (2, 19)
_MODULE = "tensorflow.compiler.tf2xla.python.xla"
_TENSORFLOW_CC = "libtensorflow_cc.so.2"
_GET_API = "_ZN3xla3ffi12GetXlaFfiApiEv"  # xla::ffi::GetXlaFfiApi()


@functools.cache
def problem() -> str | None:
    """Returns why XLA cannot run collectives here; None if it can."""
    if tensorflow_version() < _OLDEST_WITH_XLA:
        oldest = ".".join(map(str, _OLDEST_WITH_XLA))
        return f"tensorflow=={tf.__version__} is older than {oldest}"
    if not sees_gpu():
        return None
    if not tf.test.is_built_with_cuda():
        return "there is a GPU, and this TensorFlow is built without CUDA"
    startup.set_gpu_libraries()
    return gpu.problem()


def sees_gpu() -> bool:
    """Whether TensorFlow uses a GPU."""
    return bool(tf.config.get_visible_devices("GPU"))


def blocks() -> bool:
    """Whether a collective under XLA blocks its thread until it is done."""
    return tensorflow_version() < _OLDEST_WITH_FUTURES


@functools.cache
def call_module() -> Callable[..., Any]:
    """Registers our handlers with XLA; returns TensorFlow's op for StableHLO.

    Raises:
        ImportError: This TensorFlow lacks a function that we need, or its XLA
            refuses the handlers.
    """
    library = _native.xla()
    try:
        tensorflow = ctypes.CDLL(_TENSORFLOW_CC, mode=os.RTLD_NOLOAD)
        api = tensorflow[_GET_API]
        module = importlib.import_module(_MODULE)
        function: Callable[..., Any] = module.call_module
    except (OSError, AttributeError, ImportError) as error:
        raise ImportError(
            f"hvd_keras cannot reach the XLA of tensorflow=={tf.__version__}. "
            f"Received: {error}. Use TensorFlow "
            f"{'.'.join(map(str, NEWEST_TENSORFLOW))}, or turn XLA off "
            f"(`jit_compile=False`)."
        ) from error
    api.restype = ctypes.c_void_p
    library.HvdXlaRegister.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.HvdXlaRegister.restype = ctypes.c_char_p
    message = library.HvdXlaRegister(api(), blocks(), sees_gpu())
    if message is not None:
        raise ImportError(
            f"The XLA of tensorflow=={tf.__version__} does not take the "
            f"handlers of hvd_keras: {message.decode()}"
        )
    return function
