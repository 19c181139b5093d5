"""Loads the native libraries; no other module does.

`core()` is the engine and knows no framework. `ops()` holds the TensorFlow
ops, and is the only place that looks at TensorFlow's version. `xla()` holds the
handlers for programs of XLA, of TensorFlow and JAX alike.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import os
import pathlib
import types
from collections.abc import Callable
from typing import Any

from hvd_keras import gpu_shim

# One binary serves all of these (TF's C API). What is newer is tried first.
_OLDEST_TENSORFLOW = (2, 16)
_NEWEST_TENSORFLOW = (2, 21)
_PACKAGE = pathlib.Path(__file__).parents[1]
_OPS_LIBRARY = _PACKAGE / "libhvd_tf.so"
# XLA's FFI 0.1; futures in its calls.
_OLDEST_WITH_XLA = (2, 18)
_OLDEST_WITH_XLA_FUTURES = (2, 19)
_XLA_LIBRARY = _PACKAGE / "libhvd_ffi.so"
_XLA_MODULE = "tensorflow.compiler.tf2xla.python.xla"
_TENSORFLOW_CC = "libtensorflow_cc.so.2"
_GET_XLA_API = "_ZN3xla3ffi12GetXlaFfiApiEv"  # xla::ffi::GetXlaFfiApi()
_BUILD_HINT = (
    "Install hvd_keras with `pip install .`, or build it in place with "
    "`pip install -e .`."
)

_logger = logging.getLogger(__name__)


@functools.cache
def core() -> types.ModuleType:
    """Returns the extension module `hvd_keras._core`."""
    try:
        return importlib.import_module("hvd_keras._core")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"The extension module `hvd_keras._core` must exist in "
            f"{_PACKAGE}. Received: {error}. {_BUILD_HINT}"
        ) from error


@functools.cache
def ops() -> types.ModuleType:
    """Returns the module of the raw TensorFlow ops, `horovod_allreduce` etc."""
    version = _tensorflow_version()
    if not _OPS_LIBRARY.exists():
        raise ImportError(
            f"The TensorFlow ops must be at {_OPS_LIBRARY}. Received: no such "
            f"file. {_BUILD_HINT}"
        )
    import tensorflow as tf

    library = tf.load_op_library(str(_OPS_LIBRARY))
    if version > _NEWEST_TENSORFLOW:
        _self_test(library)
    _set_gpu_shim(version)
    return library


def _set_gpu_shim(version: tuple[int, int]) -> None:
    """Tells the kernels on GPUs where they find their stream.

    Without the shim, which only GPUs need, they say how to build it.
    """
    shim = gpu_shim.path(version)
    if shim.exists():
        function = ctypes.CDLL(str(shim)).hvd_tf_stream
        ctypes.CDLL(str(_OPS_LIBRARY)).hvd_tf_set_stream_function(function)


@functools.cache
def xla() -> ctypes.CDLL:
    """Returns the library of the handlers in tf_ops/xla/handlers.h."""
    core()  # the library that both need
    if not _XLA_LIBRARY.exists():
        raise ImportError(
            f"The handlers for XLA must be at {_XLA_LIBRARY}. Received: no "
            f"such file. {_BUILD_HINT}"
        )
    return ctypes.CDLL(str(_XLA_LIBRARY))


# ---- XLA of TensorFlow ----


@functools.cache
def xla_problem() -> str | None:
    """Returns why XLA cannot run collectives here; None: it can."""
    import tensorflow as tf

    if _tensorflow_version() < _OLDEST_WITH_XLA:
        oldest = ".".join(map(str, _OLDEST_WITH_XLA))
        return f"tensorflow=={tf.__version__} is older than {oldest}"
    if not sees_gpu():
        return None
    if not tf.test.is_built_with_cuda():
        return "there is a GPU, and this TensorFlow is built without CUDA"
    from hvd_keras._native import gpu

    return gpu.problem()


def sees_gpu() -> bool:
    """Whether TensorFlow uses a GPU."""
    import tensorflow as tf

    return bool(tf.config.get_visible_devices("GPU"))


def xla_blocks() -> bool:
    """Whether a collective that XLA runs holds the thread that runs it."""
    return _tensorflow_version() < _OLDEST_WITH_XLA_FUTURES


@functools.cache
def xla_call_module() -> Callable[..., Any]:
    """Returns TensorFlow's op for StableHLO; makes our handlers known to XLA.

    Raises:
        ImportError: This TensorFlow has not what it takes.
    """
    import tensorflow as tf

    library = xla()
    try:
        tensorflow = ctypes.CDLL(_TENSORFLOW_CC, mode=os.RTLD_NOLOAD)
        api = tensorflow[_GET_XLA_API]
        module = importlib.import_module(_XLA_MODULE)
        function: Callable[..., Any] = module.call_module
    except (OSError, AttributeError, ImportError) as error:
        raise ImportError(
            f"hvd_keras cannot reach the XLA of tensorflow=={tf.__version__}. "
            f"Received: {error}. Use TensorFlow "
            f"{'.'.join(map(str, _NEWEST_TENSORFLOW))}, or no XLA "
            f"(`jit_compile=False`)."
        ) from error
    api.restype = ctypes.c_void_p
    library.HvdXlaRegister.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.HvdXlaRegister.restype = ctypes.c_char_p
    message = library.HvdXlaRegister(api(), xla_blocks(), sees_gpu())
    if message is not None:
        raise ImportError(
            f"The XLA of tensorflow=={tf.__version__} does not take the "
            f"handlers of hvd_keras: {message.decode()}"
        )
    return function


def _tensorflow_version() -> tuple[int, int]:
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        raise ImportError(
            "The ops of hvd_keras need TensorFlow, which is not installed. "
            "Install it, for example with `pip install tensorflow-cpu`."
        ) from error
    major, minor = tf.__version__.split(".")[:2]
    version = (int(major), int(minor))
    if version < _OLDEST_TENSORFLOW:
        raise ImportError(
            f"The ops of hvd_keras need TensorFlow "
            f"{'.'.join(map(str, _OLDEST_TENSORFLOW))} or newer. Received: "
            f"tensorflow=={tf.__version__} ({tf.__file__})."
        )
    return version


def _self_test(library: types.ModuleType) -> None:
    """Runs one op that ends at once on this rank, without the other ranks.

    Our kernels call TensorFlow's `done` through the layout of a C++ object. If
    a new release changed it, the process dies here, after a word about why,
    and not somewhere in the first step of a training.
    """
    import tensorflow as tf

    newest = ".".join(map(str, _NEWEST_TENSORFLOW))
    _logger.warning(
        "hvd_keras has been tried with TensorFlow up to %s, and this is %s. "
        "It tests one op now; if the process crashes here, use TensorFlow %s.",
        newest,
        tf.__version__,
        newest,
    )
    refusals = (
        tf.errors.InvalidArgumentError,  # a bool has no sum
        tf.errors.FailedPreconditionError,  # or `init()` was not called
    )
    try:
        library.horovod_allreduce(True, "hvd_keras.self_test", reduce_op=1)
    except refusals:
        return
    raise ImportError(
        f"The self-test of the ops failed: a kernel did not report its error "
        f"to TensorFlow {tf.__version__}. Use TensorFlow {newest}."
    )
