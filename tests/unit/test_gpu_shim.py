"""The library that tells the stream of a kernel on a GPU is built and loads.

Nothing here can run it: that takes a TensorFlow with a GPU.
"""

from __future__ import annotations

import ctypes
import pathlib
import subprocess

import tensorflow as tf
from tensorflow.python.framework import kernels

from hvd_keras import _native, gpu_shim
from hvd_keras.gpu_shim.__main__ import build

HOST_MEMORY = {
    "HorovodAllgather": {"tensor_name"},
    "HorovodAllreduce": {"tensor_name"},
    "HorovodAlltoall": {"tensor_name", "splits", "received_splits"},
    "HorovodBroadcast": {"tensor_name"},
    "HorovodGroupedAllgather": {"tensor_name"},
    "HorovodGroupedAllreduce": {"tensor_name"},
    "HorovodGroupedBroadcast": {"tensor_name"},
    "HorovodGroupedReducescatter": {"tensor_name"},
    "HorovodReducescatter": {"tensor_name"},
}


def test_it_is_built_for_this_tensorflow(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "libshim.so"
    build(target, tf.sysconfig.get_compile_flags())
    function = ctypes.CDLL(str(target)).hvd_tf_stream
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", str(target)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # It calls through tables that TensorFlow's objects have, so it is bound to
    # one version's layout, and to no symbol.
    assert "tensorflow" not in symbols
    assert "stream_executor" not in symbols
    _native.ops()  # before: TensorFlow sees no ops in a library that is loaded
    library = ctypes.CDLL(
        str(pathlib.Path(gpu_shim.__file__).parents[1] / "libhvd_tf.so")
    )
    try:
        library.hvd_tf_set_stream_function(function)
    finally:
        library.hvd_tf_set_stream_function(None)


def test_its_name_has_the_version() -> None:
    assert gpu_shim.path((2, 21)).name == "libhvd_tf_gpu_2_21.so"


def test_kernels_for_gpus_take_names_and_splits_from_the_host() -> None:
    _native.ops()
    for op, expected in HOST_MEMORY.items():
        registered = kernels.get_registered_kernels_for_op(op).kernel
        on_gpu = [k for k in registered if k.device_type == "GPU"]
        assert len(on_gpu) == 1, op
        assert set(on_gpu[0].host_memory_arg) == expected, op
    barrier = kernels.get_registered_kernels_for_op("HorovodBarrier").kernel
    assert [k.device_type for k in barrier] == ["CPU"]
