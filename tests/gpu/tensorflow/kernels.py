"""A rank that runs our TensorFlow kernels for GPUs: see test_gpu_suite.py.

The GPU is a fake (fake_device.cc), on which TensorFlow can do little more than
copy. A kernel's stream comes from the fake too, not from a shim.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import load_library

import hvd_keras as hvd
from hvd_keras import _native, gpu_shim
from hvd_keras.exceptions import InternalError, MismatchError

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
    text = ctypes.create_string_buffer(1 << 20)
    fakes.fakeLogStop(text, ctypes.c_size_t(len(text)))
    calls.update(line.split()[1] for line in text.value.decode().splitlines())


def check_missing_shim() -> None:
    with (
        tf.device("GPU:0"),
        pytest.raises(InternalError, match=gpu_shim.BUILD_COMMAND),
    ):
        hvd.allreduce(on_gpu([1.0]))


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
        if round_ < 4:
            sums, gradient = step(x)
        else:
            with logged() as calls:
                sums, gradient = step(x)
            assert "ncclAllReduce" in calls, calls
            assert not BLOCKING & calls, calls
        check(sums, [[(1.0 + round_) * size] * 1000] * 20)
        np.testing.assert_array_equal(gradient, [float(size)] * 1000)


def check_mismatch() -> None:
    device = "GPU:0" if hvd.rank() == 0 else "CPU:0"
    with (
        tf.device(device),
        pytest.raises(MismatchError, match="a GPU on rank 0; the CPU on"),
    ):
        hvd.allreduce(tf.identity(tf.ones(3)), name="elsewhere")


def main() -> None:
    library = os.environ["FAKE_DEVICE_LIBRARY"]
    load_library.load_pluggable_device_library(library)
    assert len(tf.config.list_physical_devices("GPU")) == 1
    hvd.init()
    gpu_shim.path = lambda version: pathlib.Path("/none")
    _native.ops()
    check_missing_shim()
    package = pathlib.Path(_native.__file__).parents[1]
    kernels = ctypes.CDLL(str(package / "libhvd_tf.so"))
    stream = ctypes.CDLL(library).fake_tf_stream
    kernels.hvd_tf_set_stream_function(stream)
    check_ops()
    check_function()
    check_mismatch()
    hvd.shutdown()
    os.environ["HVD_GPU_ASYNC_COMPLETION"] = "1"
    hvd.init()
    check_function()
    hvd.shutdown()
    print("the kernels ran", flush=True)


if __name__ == "__main__":
    sys.exit(main())
