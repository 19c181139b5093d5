"""Streams and collectives wait for each other on the GPU, never on the host."""

from __future__ import annotations

import collections
import random
import threading
import time

import numpy as np
import pytest
from calls import Call, pattern
from devices import Device, FakeDevice, from_bytes

import hvd_keras as hvd

SLOW_US = 100_000
# Functions that wait, or may wait, for the GPU.
BLOCKING = {
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaMalloc",
    "cudaFree",
}


def test_a_slow_producer_is_waited_for(device: Device) -> None:
    is_slow = hvd.rank() == hvd.size() - 1
    for dtype, count in (("float32", 10), ("float64", 100_000)):
        mine = [pattern((count,), hvd.rank(), dtype)]
        begin = time.perf_counter()
        call = Call(
            device,
            "allreduce",
            "slow",
            mine,
            dtype,
            op=int(hvd.Sum),
            delay_us=SLOW_US if is_slow else 0,
        )
        (output,) = call.wait()
        expected = sum(pattern((count,), r, dtype) for r in range(hvd.size()))
        np.testing.assert_array_equal(output, expected)
        # The other ranks may have begun later, and waited less.
        waited = time.perf_counter() - begin
        assert not is_slow or waited > SLOW_US * 0.9e-6


@pytest.mark.parametrize("kind", ["allreduce", "allgather"])
def test_a_consumer_may_come_at_once(device: Device, kind: str) -> None:
    """`done` comes in stream order: a consumer can be queued right away."""
    mine = pattern((2_000,), hvd.rank(), "float32")
    parts = [pattern((2_000,), r, "float32") for r in range(hvd.size())]
    expected = sum(parts) if kind == "allreduce" else np.concatenate(parts)
    calls = []  # keeps memory: freeing it may wait for the GPU
    for i in range(5):
        begin = time.perf_counter()
        call = Call(
            device,
            kind,
            f"{kind}.{i}",
            [mine],
            op=int(hvd.Sum),
            delay_us=SLOW_US,
            in_stream_order=True,
        )
        call.call.wait()
        waited = time.perf_counter() - begin
        calls.append(call)
        (output,) = call.outputs
        assert output is not None
        consumed = device.allocate(output.num_bytes)
        device.copy(consumed, output)
        # The first call connects the GPUs, which takes a while.
        assert i == 0 or waited < SLOW_US * 1e-6, "the host has waited"
        got = from_bytes(device.read(consumed), "float32", expected.shape)
        np.testing.assert_array_equal(got, expected)


def test_random_sequences(device: Device) -> None:
    """Calls of all sizes, fused or not, in an order of each rank's own."""
    common = random.Random(5)
    own = random.Random(hvd.rank())
    for round_ in range(14):
        plan = [
            (
                f"t{i}",
                common.choice(["float32", "float16", "int32"]),
                common.choice([1, 17, 1000, 70_000]),
                common.choice(["allreduce", "allreduce", "broadcast"]),
            )
            for i in range(25)
        ]
        order = list(plan)
        own.shuffle(order)
        calls = {}
        for name, dtype, count, kind in order:
            mine = [pattern((count,), hvd.rank() + round_, dtype)]
            delay_us = 300 if own.random() < 0.1 else 0
            options = {"op": int(hvd.Sum)} if kind == "allreduce" else {}
            calls[name] = Call(
                device, kind, name, mine, dtype, delay_us=delay_us, **options
            )
        for name, dtype, count, kind in plan:
            (output,) = calls[name].wait()
            ranks = range(hvd.size() if kind == "allreduce" else 1)
            expected = sum(pattern((count,), r + round_, dtype) for r in ranks)
            np.testing.assert_array_equal(output, expected, err_msg=name)


def test_memory_stays_flat(device: Device) -> None:
    def step() -> None:
        calls = [
            Call(device, "allreduce", f"f{i}", [np.ones((5000,))] * 3)
            for i in range(20)
        ]
        for call in calls:
            call.wait()

    for _ in range(3):
        step()
    before = device.used_bytes()
    for _ in range(10):
        step()
    assert device.used_bytes() <= before + (8 << 20)


def test_the_host_never_blocks(device: Device) -> None:
    if not isinstance(device, FakeDevice):
        pytest.skip("only the fake has a log")
    inputs = [device.allocate(4 * 1000) for _ in range(30)]
    core = Call(device, "allreduce", "n0", [np.ones((1000,))])  # connects
    core.wait()
    from hvd_keras import _native

    def step() -> None:
        handles = [
            _native.core().gpu_submit(
                "allreduce",
                f"n{i}",
                [(buffer.address, buffer.address, "float32", [1000])],
                device.ordinal,
                device.stream,
                op=int(hvd.Sum),
            )
            for i, buffer in enumerate(inputs)
        ]
        for handle in handles:
            handle.wait()

    step()  # makes the events that later steps use again
    with device.logged() as entries:
        step()
    calls = collections.defaultdict(set)
    for thread, function in entries:
        calls[thread].add(function)
    mine = threading.get_native_id()
    assert calls[mine] == {"cudaEventRecord"}
    assert not BLOCKING & set.union(*calls.values())
    launching = [t for t in calls if "ncclAllReduce" in calls[t]]
    polling = [t for t in calls if "cudaEventQuery" in calls[t]]
    assert len(launching) == 1
    assert mine not in launching + polling
    assert device.library.fakeNcclNumMisuses() == 0
