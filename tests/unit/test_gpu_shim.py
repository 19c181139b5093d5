"""Kernels for GPUs are registered; their shim has a version in its name."""

from __future__ import annotations

from tensorflow.python.framework import kernels

from hvd_keras import _native, gpu_shim

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


def test_name_of_the_library_has_the_version() -> None:
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
