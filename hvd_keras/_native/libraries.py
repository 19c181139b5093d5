"""Loads the native libraries; only this module does.

`core()` is the engine and knows no framework. `ops()` holds the TensorFlow ops.
`xla()` holds the handlers for XLA programs of both TensorFlow and JAX. Only
`tensorflow_version()` looks at TensorFlow's version.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import pathlib
import types

from hvd_keras import gpu_shim
from hvd_keras._native import profiler

# One binary serves all of these (TF's C API). Newer ones are tested first.
_OLDEST_TENSORFLOW = (2, 16)
NEWEST_TENSORFLOW = (2, 21)
_PACKAGE = pathlib.Path(__file__).parents[1]
_OPS_LIBRARY = _PACKAGE / "libhvd_tf.so"
_XLA_LIBRARY = _PACKAGE / "libhvd_ffi.so"
_BUILD_HINT = (
    "Install hvd_keras with `pip install .`, or build it in place with "
    "`pip install -e .`."
)
_CLONE_HINT = (
    "These are the sources, which Python imports where the script, or the "
    "current directory, is at the top of the clone. Move the script into a "
    "folder of its own, or build in place with `pip install -e .`."
)

_logger = logging.getLogger(__name__)


@functools.cache
def core() -> types.ModuleType:
    """Returns the extension module `hvd_keras._core`."""
    try:
        return importlib.import_module("hvd_keras._core")
    except ModuleNotFoundError as error:
        is_clone = (_PACKAGE.parent / "setup.py").exists()
        raise ImportError(
            f"The extension module `hvd_keras._core` must exist in "
            f"{_PACKAGE}. Received: {error}. "
            f"{_CLONE_HINT if is_clone else _BUILD_HINT}"
        ) from error


def core_library() -> str:
    """Returns the path of libhvd_core.so."""
    return str(pathlib.Path(str(core().__file__)).parent / "libhvd_core.so")


@functools.cache
def ops() -> types.ModuleType:
    """Returns the module of the raw TensorFlow ops, `horovod_allreduce` etc."""
    library = register_ops()
    version = tensorflow_version()
    if version > NEWEST_TENSORFLOW:
        _self_test(library)
    _set_gpu_shim(version)
    profiler.show_to_tensorflow(core())
    return library


def register_ops() -> types.ModuleType:
    """Tells TensorFlow of the ops, and runs none.

    From then on graphs that have them can be imported.
    """
    tensorflow_version()
    if not _OPS_LIBRARY.exists():
        raise ImportError(
            f"The TensorFlow ops must be at {_OPS_LIBRARY}. Received: no such "
            f"file. {_BUILD_HINT}"
        )
    import tensorflow as tf

    return tf.load_op_library(str(_OPS_LIBRARY))


def _set_gpu_shim(version: tuple[int, int]) -> None:
    """Tells the kernels on GPUs where to find their stream.

    Only GPUs need the shim. If it is missing, or that of an older hvd_keras,
    the kernels say how to build it.
    """
    shim = gpu_shim.path(version)
    if not shim.exists():
        return
    function = getattr(ctypes.CDLL(str(shim)), gpu_shim.FUNCTION, None)
    if function is not None:
        ctypes.CDLL(str(_OPS_LIBRARY)).hvd_tf_set_place_function(function)


@functools.cache
def xla() -> ctypes.CDLL:
    """Returns the library of the handlers in tf_ops/xla/handlers.h."""
    core()  # loads the library that both need
    if not _XLA_LIBRARY.exists():
        raise ImportError(
            f"The handlers for XLA must be at {_XLA_LIBRARY}. Received: no "
            f"such file. {_BUILD_HINT}"
        )
    return ctypes.CDLL(str(_XLA_LIBRARY))


def tensorflow_version() -> tuple[int, int]:
    """Returns the major and minor version of the installed TensorFlow.

    Raises:
        ImportError: TensorFlow is missing, or too old for the ops.
    """
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

    Our kernels rely on the layout of a C++ object to call TensorFlow's `done`.
    If a new release has changed it, the process dies here, after a warning that
    says why, and not in the first step of training.
    """
    import tensorflow as tf

    newest = ".".join(map(str, NEWEST_TENSORFLOW))
    _logger.warning(
        "hvd_keras was tested with TensorFlow up to %s, and this is %s. "
        "It tests one op now. If the process crashes here, use TensorFlow %s.",
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
