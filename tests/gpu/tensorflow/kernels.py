"""A rank that runs our TensorFlow kernels for GPUs: see test_gpu_suite.py.

With FAKE_DEVICE_LIBRARY the GPU is a fake (fake_device.cc), on which TensorFlow
can do little more than copy; a kernel's stream comes from the fake too. Without
it (`make gpu-check`) GPU, stream and shim are the real ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from devices import prepare_to_share, stop_log
from tensorflow.python.framework import load_library

import hvd_keras as hvd
from hvd_keras import _native, gpu_shim
from hvd_keras.exceptions import InternalError, MismatchError
from hvd_keras.ops import _xla

IS_FAKE = "FAKE_DEVICE_LIBRARY" in os.environ

# Functions that wait for the GPU.
BLOCKING = {
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
}


def on_gpu(values: Any, dtype: tf.DType = tf.float32) -> tf.Tensor:
    with tf.device("GPU:0"):
        return tf.identity(tf.constant(values, dtype))


def check(outputs: Any, expected: Any) -> None:
    """Checks one tensor, or a list of tensors."""
    if not isinstance(outputs, list):
        outputs, expected = [outputs], [expected]
    for output, values in zip(outputs, expected, strict=True):
        assert "GPU" in output.device, output.device
        np.testing.assert_array_equal(output.numpy(), values)


def is_gpu_memory(address: int) -> bool:
    attributes = (ctypes.c_int * 64)()
    fakes = ctypes.CDLL(os.environ["HVD_CUDART_LIBRARY"])
    fakes.cudaPointerGetAttributes(attributes, ctypes.c_void_p(address))
    return attributes[0] != 0


@contextlib.contextmanager
def logged() -> Iterator[set[str]]:
    """Collects the functions of CUDA and NCCL that any thread calls."""
    calls: set[str] = set()
    fakes = ctypes.CDLL(os.environ["HVD_CUDART_LIBRARY"])
    fakes.fakeLogStart()
    yield calls
    calls.update(function for _, function in stop_log(fakes))


def check_missing_shim() -> None:
    with (
        tf.device("GPU:0"),
        pytest.raises(InternalError, match=gpu_shim.BUILD_COMMAND),
    ):
        hvd.allreduce(on_gpu([1.0]))


def check_empty_first() -> None:
    """The first tensor has no memory that would tell its GPU."""
    with tf.device("GPU:0"):
        check(hvd.allreduce(on_gpu([])), [])


def check_ops() -> None:
    rank, size = hvd.rank(), hvd.size()
    rows = np.arange(6.0).reshape(3, 2) + rank
    all_rows = [np.arange(6.0).reshape(3, 2) + r for r in range(size)]
    x = on_gpu(rows)
    with tf.device("GPU:0"):
        check(hvd.allreduce(x, hvd.Sum), sum(all_rows))
        check(hvd.allreduce(x, hvd.Max), np.max(all_rows, axis=0))
        many = [x, on_gpu(7, tf.int64), on_gpu([0.5] * 9000, tf.float16)]
        expected = [sum(all_rows), 7 * size, [0.5 * size] * 9000]
        check(hvd.grouped_allreduce(many, hvd.Sum), expected)
        check(hvd.broadcast(x, size - 1), all_rows[-1])
        check(hvd.allgather(x[: rank + 1]), np.concatenate(
            [part[: r + 1] for r, part in enumerate(all_rows)]
        ))  # fmt: skip
        check(hvd.grouped_allgather([x, x])[1], np.concatenate(all_rows))
        parts = np.array_split(sum(all_rows), size)
        check(hvd.reducescatter(x, hvd.Sum), parts[rank])
        splits = [3 - 3 * rank] + [0] * (size - 2) + [3 * rank]
        output, received = hvd.alltoall(x, splits)
        # With two ranks each keeps its rows.
        check(output, rows)
        assert "CPU" in received.backing_device
        assert received.numpy().tolist() == splits
        if IS_FAKE:
            assert not is_gpu_memory(received.numpy().ctypes.data)


def check_function() -> None:
    """Checks a graph with a gradient and several collectives in flight."""
    size = hvd.size()

    @tf.function
    def step(x: tf.Tensor) -> Any:
        with tf.device("GPU:0"), tf.GradientTape() as tape:
            tape.watch(x)
            sums = [hvd.allreduce(x, hvd.Sum, name=f"f{i}") for i in range(20)]
        return sums, tape.gradient(sums[3], x)

    for round_ in range(5):
        x = on_gpu([1.0 + round_] * 1000)
        if round_ < 4 or not IS_FAKE:
            sums, gradient = step(x)
        else:
            with logged() as calls:
                sums, gradient = step(x)
            assert "ncclAllReduce" in calls, calls
            assert not BLOCKING & calls, calls
        check(sums, [[(1.0 + round_) * size] * 1000] * 20)
        np.testing.assert_array_equal(gradient, [float(size)] * 1000)


def is_early(setting: str) -> bool:
    """Reduces a bucket as an optimizer does, behind 0.5 s of other work."""
    fakes = ctypes.CDLL(os.environ["HVD_CUDART_LIBRARY"])
    place = ctypes.CDLL(os.environ["FAKE_DEVICE_LIBRARY"]).fake_tf_place
    stream = ctypes.c_void_p()
    place(None, ctypes.byref(stream))

    @tf.function
    def step(x: tf.Tensor) -> Any:
        with tf.device("GPU:0"), _xla.ending_together():
            name = f"bucket.{setting}"
            return hvd.grouped_allreduce([x, x], hvd.Sum, name=name)

    x = on_gpu([1.0] * 100)
    check(step(x), [[float(hvd.size())] * 100] * 2)  # traces, connects
    cell = ctypes.create_string_buffer(8)
    size, delay_us = ctypes.c_size_t(8), ctypes.c_int64(500_000)
    fakes.fakeCopyLater(cell, cell, size, delay_us, stream)
    begin = time.monotonic()
    outputs = step(x)
    seconds = time.monotonic() - begin
    check(outputs, [[float(hvd.size())] * 100] * 2)
    assert time.monotonic() - begin > 0.45
    return seconds < 0.4


def check_mismatch() -> None:
    device = "GPU:0" if hvd.rank() == 0 else "CPU:0"
    with (
        tf.device(device),
        pytest.raises(MismatchError, match="a GPU on rank 0; the CPU on"),
    ):
        hvd.allreduce(tf.identity(tf.ones(3)), name="elsewhere")


def check_integers() -> None:
    """TensorFlow keeps int32 in host memory, also on a GPU."""
    with tf.device("GPU:0"):
        total = hvd.allreduce(tf.constant([1, 2], tf.int32), hvd.Sum)
    assert total.numpy().tolist() == [hvd.size(), 2 * hvd.size()]


def check_compiled() -> None:
    @tf.function(jit_compile=True)
    def step(x: tf.Tensor) -> Any:
        return hvd.allreduce(x * 2.0, hvd.Sum, name="compiled") + 1.0

    with tf.device("GPU:0"):
        output = step(on_gpu([1.0, 2.0]))
    check(output, [2.0 * hvd.size() + 1.0, 4.0 * hvd.size() + 1.0])


def main_on_real_gpus() -> None:
    prepare_to_share(os.environ)
    hvd.init()
    found = tf.config.list_physical_devices("GPU")
    if not found:
        print("no GPU here")
        return
    tf.config.experimental.set_memory_growth(found[0], True)
    check_empty_first()
    check_ops()
    check_integers()
    check_compiled()
    check_function()
    check_mismatch()
    hvd.shutdown()
    print("the kernels ran", flush=True)


def main_on_fakes() -> None:
    # TensorFlow's GPU 0 is the GPU of this rank, whatever CUDA's number.
    os.environ["FAKE_DEVICE_ORDINAL"] = os.environ["HVD_LOCAL_RANK"]
    library = os.environ["FAKE_DEVICE_LIBRARY"]
    load_library.load_pluggable_device_library(library)
    assert len(tf.config.list_physical_devices("GPU")) == 1
    hvd.init()
    gpu_shim.path = lambda version: pathlib.Path("/none")
    _native.ops()
    check_missing_shim()
    package = pathlib.Path(_native.__file__).parents[1]
    kernels = ctypes.CDLL(str(package / "libhvd_tf.so"))
    place = ctypes.CDLL(library).fake_tf_place
    kernels.hvd_tf_set_place_function(place)
    check_empty_first()
    check_ops()
    check_function()
    check_mismatch()
    assert is_early("unset")
    hvd.shutdown()
    os.environ["HVD_GPU_ASYNC_COMPLETION"] = "0"
    hvd.init()
    assert not is_early("0")
    hvd.shutdown()
    os.environ["HVD_GPU_ASYNC_COMPLETION"] = "1"
    hvd.init()
    check_function()
    hvd.shutdown()
    print("the kernels ran", flush=True)


if __name__ == "__main__":
    sys.exit(main_on_fakes() if IS_FAKE else main_on_real_gpus())
