"""g++ builds the GPU shim for this TensorFlow, and our library takes it.

Running the shim takes a TensorFlow with a GPU.
"""

from __future__ import annotations

import ctypes
import pathlib
import subprocess

import pytest
import tensorflow as tf

from hvd_keras import _native, gpu_shim
from hvd_keras.gpu_shim.__main__ import build


@pytest.mark.thorough
def test_shim_is_built_and_loads(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "libshim.so"
    build(target, tf.sysconfig.get_compile_flags())
    function = ctypes.CDLL(str(target)).hvd_tf_place
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", str(target)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # It calls through the tables of TensorFlow's objects, so it needs the
    # layout of one version and no symbol.
    assert "tensorflow" not in symbols
    assert "stream_executor" not in symbols
    # Before CDLL: TensorFlow sees no ops in a library that is loaded already.
    _native.ops()
    library = ctypes.CDLL(
        str(pathlib.Path(gpu_shim.__file__).parents[1] / "libhvd_tf.so")
    )
    try:
        library.hvd_tf_set_place_function(function)
    finally:
        library.hvd_tf_set_place_function(None)
