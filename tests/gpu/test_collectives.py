"""Compares every collective and dtype on GPUs with NumPy, in some sizes."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable

import numpy as np
import pytest
from calls import Call, of_all_ranks, pattern, run
from devices import Device, FakeDevice, from_bytes, to_bytes

import hvd_keras as hvd
from hvd_keras import _native
from hvd_keras.exceptions import InvalidArgumentError, MismatchError

REDUCED = (
    "uint8 int8 uint32 int32 uint64 int64 float16 bfloat16 float32 float64"
).split()
COPIED = ["bool", "uint16", "int16", *REDUCED]
FLOATS = "float16 bfloat16 float32 float64".split()
# No element, one, few enough for the fusion buffer, too many for it.
SHAPES = [(0,), (1,), (7, 3), (40_000,)]
OPS = [
    (hvd.Sum, lambda values: sum(values)),
    (hvd.Min, lambda values: functools.reduce(np.minimum, values)),
    (hvd.Max, lambda values: functools.reduce(np.maximum, values)),
    (hvd.Product, lambda values: functools.reduce(np.multiply, values)),
]


@pytest.mark.parametrize("dtype", REDUCED)
def test_allreduce(device: Device, dtype: str) -> None:
    for op, reduce in OPS:
        for shape in SHAPES:
            calls = [
                Call(
                    device,
                    "allreduce",
                    f"{op}.{i}",
                    [pattern(shape, hvd.rank(), dtype)] * (i + 1),
                    dtype,
                    op=int(op),
                    in_place=i == 1,
                )
                for i in range(2)
            ]
            expected = reduce(of_all_ranks(shape, dtype))
            for call in calls:
                for output in call.wait():
                    np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(device: Device, dtype: str) -> None:
    """Values that are exact in any order of sums."""
    pytest.importorskip("ml_dtypes")
    size, rank = hvd.size(), hvd.rank()
    values = [np.full((size, 300), 1.0 + r % 2) for r in range(size)]
    mine = [values[rank]] * 2
    try:
        run(device, "allreduce", "probe", mine, dtype, op=int(hvd.Sum))
    except InvalidArgumentError as error:
        if "NCCL reduces float8" not in str(error):
            raise
        pytest.skip(str(error))  # this NCCL or this GPU cannot
    average = (hvd.Average, lambda values: sum(values) / size)
    for op, reduce in [*OPS, average]:
        expected = reduce(values).astype(dtype)
        outputs = run(device, "allreduce", "f8", mine, dtype, op=int(op))
        parts = run(device, "reducescatter", "f8s", mine, dtype, op=int(op))
        for output, part in zip(outputs, parts, strict=True):
            np.testing.assert_array_equal(output, expected)
            np.testing.assert_array_equal(part, expected[:1])
    for output in run(device, "allgather", "f8g", mine, dtype):
        np.testing.assert_array_equal(
            output, np.concatenate(values).astype(dtype)
        )
    with pytest.raises(InvalidArgumentError, match="16 bits or more"):
        run(device, "allreduce", "f8", mine, dtype, prescale=2.0)


def test_allreduce_of_bool(device: Device) -> None:
    values = of_all_ranks((100,), "bool")
    mine = [values[hvd.rank()]]
    any_is = run(device, "allreduce", "any", mine, "bool", op=int(hvd.Max))
    all_are = run(device, "allreduce", "all", mine, "bool", op=int(hvd.Min))
    np.testing.assert_array_equal(any_is[0], np.any(values, axis=0))
    np.testing.assert_array_equal(all_are[0], np.all(values, axis=0))


@pytest.mark.parametrize("dtype", ["int32", "int64", *FLOATS])
def test_average(device: Device, dtype: str) -> None:
    mine = np.full((50,), 3.0 * hvd.size() * (hvd.rank() % 2 * 2 - 1))
    expected = 3.0 * sum(rank % 2 * 2 - 1 for rank in range(hvd.size()))
    outputs = run(
        device, "allreduce", "avg", [mine, mine], dtype, op=int(hvd.Average)
    )
    # NCCL multiplies what is wide by a rounded 1/n, and adds, in one
    # instruction: the rounding of one product may stay. 1/2 and 1/4 are exact.
    is_rounded = hvd.size() & (hvd.size() - 1) and dtype in FLOATS[2:]
    is_real = not isinstance(device, FakeDevice)
    rtol = np.finfo(dtype).eps if is_rounded and is_real else 0.0
    for output in outputs:
        np.testing.assert_allclose(output, np.full((50,), expected), rtol)


@pytest.mark.parametrize("dtype", FLOATS)
def test_average_has_no_bias(device: Device, dtype: str) -> None:
    """Errors of rounding have either sign; those of a rounded 1/3 have one."""
    size = hvd.size()
    random = np.random.default_rng(1)
    exact = [
        from_bytes(to_bytes(values, dtype), dtype, values.shape)
        for values in random.uniform(1.0, 2.0, (size, 60_000))
    ]
    expected = np.mean(np.asarray(exact, np.float64), axis=0)
    mine = [exact[hvd.rank()][:50_000], exact[hvd.rank()][50_000:]]
    (parts,) = run(
        device, "reducescatter", "u", [mine[0]], dtype, op=int(hvd.Average)
    )
    outputs = run(device, "allreduce", "u", mine, dtype, op=int(hvd.Average))
    whole = np.concatenate(outputs)
    own = np.array_split(expected[:50_000], size)[hvd.rank()]
    limit = {"bfloat16": 3e-4, "float16": 5e-5}.get(dtype, 1e-6)
    for output, right in ((whole, expected), (parts, own)):
        errors = np.asarray(output, np.float64) / right - 1.0
        assert abs(errors.mean()) < limit, errors.mean()
    if isinstance(device, FakeDevice) and os.environ.get("FAKE_GPU_MULTICAST"):
        # The switch can sum, but not multiply.
        before = device.library.fakeNcclNumPremultiplied()
        run(device, "allreduce", "u", mine, dtype, op=int(hvd.Average))
        used = device.library.fakeNcclNumPremultiplied() - before
        assert (used == 0) == (dtype != "float16"), used


def test_an_average_of_large_numbers_does_not_overflow(device: Device) -> None:
    mine = [np.full((9,), 60_000.0)] * 2
    for output in run(
        device, "allreduce", "l", mine, "float16", op=int(hvd.Average)
    ):
        np.testing.assert_array_equal(output, mine[0])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_scales(device: Device, dtype: str, op: hvd.ReduceOp) -> None:
    size = hvd.size()
    mine = np.full((9,), 8.0)
    for kind in ("allreduce", "reducescatter"):
        (output,) = run(
            device,
            kind,
            f"scaled.{kind}",
            [mine],
            dtype,
            op=int(op),
            prescale=0.5,
            postscale=4.0,
        )
        expected = 16.0 * (1 if op == hvd.Average else size)
        np.testing.assert_allclose(output, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", COPIED)
def test_broadcast(device: Device, dtype: str) -> None:
    root = hvd.size() - 1
    for shape in SHAPES:
        mine = [pattern(shape, hvd.rank(), dtype)] * 2
        for output in run(
            device, "broadcast", "b", mine, dtype, root_rank=root
        ):
            np.testing.assert_array_equal(output, pattern(shape, root, dtype))


@pytest.mark.parametrize("dtype", COPIED)
def test_allgather(device: Device, dtype: str) -> None:
    for rows in (lambda rank: 3, lambda rank: rank * 2, lambda rank: 0):
        shapes = [(rows(rank), 5) for rank in range(hvd.size())]
        parts = [pattern(s, r, dtype) for r, s in enumerate(shapes)]
        mine = parts[hvd.rank()]
        outputs = run(device, "allgather", "g", [mine, mine], dtype)
        for output in outputs:
            np.testing.assert_array_equal(output, np.concatenate(parts))


@pytest.mark.parametrize("dtype", FLOATS)
def test_allgather_averages(device: Device, dtype: str) -> None:
    size = hvd.size()
    mine = np.full((hvd.rank() + 1, 2), 4.0 * size * (hvd.rank() + 1))
    (output,) = run(device, "allgather", "ga", [mine], dtype, average=True)
    expected = [[4.0 * (r + 1)] * 2 for r in range(size) for _ in range(r + 1)]
    np.testing.assert_allclose(output, expected, rtol=1e-2 / 2)


@pytest.mark.parametrize("dtype", COPIED)
def test_alltoall(device: Device, dtype: str) -> None:
    size, rank = hvd.size(), hvd.rank()
    for variant in range(2):
        splits = [
            [(r + 2 * peer + variant) % 3 for peer in range(size)]
            for r in range(size)
        ]
        inputs = [pattern((sum(s), 3), r, dtype) for r, s in enumerate(splits)]
        call = Call(
            device, "alltoall", "t", [inputs[rank]], dtype, splits=splits[rank]
        )
        (output,) = call.wait()
        parts = [
            np.split(inputs[r], np.cumsum(splits[r])[:-1])[rank]
            for r in range(size)
        ]
        np.testing.assert_array_equal(output, np.concatenate(parts))
        assert call.call.received == [splits[r][rank] for r in range(size)]


@pytest.mark.parametrize("dtype", REDUCED)
def test_reducescatter(device: Device, dtype: str) -> None:
    size, rank = hvd.size(), hvd.rank()
    for rows in (2 * size, 2 * size + 1, 1, 0):
        values = of_all_ranks((rows, 5), dtype)
        outputs = run(
            device,
            "reducescatter",
            "r",
            [values[rank]] * 2,
            dtype,
            op=int(hvd.Sum),
        )
        expected = np.array_split(sum(values), size)[rank]
        for output in outputs:
            np.testing.assert_array_equal(output, expected)


def test_barrier(device: Device) -> None:
    core = _native.core()
    core.gpu_submit("barrier", "b", [], device.ordinal, device.stream).wait()


@pytest.mark.parametrize("gpu", ["auto", "on"])
def test_process_sets_have_their_own_communicators(
    device: Device, monkeypatch: pytest.MonkeyPatch, gpu: str
) -> None:
    size = hvd.size()
    even = hvd.ProcessSet(range(0, size, 2))
    hvd.shutdown()
    monkeypatch.setenv("HVD_GPU", gpu)  # on: they are split off
    is_fake = isinstance(device, FakeDevice)
    with device.logged() if is_fake else contextlib.nullcontext([]) as log:
        hvd.init(process_sets=[even] if size > 1 else [])
        is_member = size > 1 and bool(even.included())
        for _ in range(2):
            if is_member:
                _check_sum(device, range(0, size, 2), even.process_set_id)
            _check_sum(device, range(size))
    if not is_fake:
        return
    calls = [function for _, function in log]
    is_split = gpu == "on" and size > 1
    assert calls.count("ncclCommSplit") == is_split
    own = is_member and not is_split
    assert calls.count("ncclCommInitRankConfig") == 1 + own


def _check_sum(
    device: Device, ranks: Iterable[int], process_set_id: int | None = 0
) -> None:
    mine = [pattern((30,), hvd.rank(), "float32")]
    (output,) = run(
        device,
        "allreduce",
        "s",
        mine,
        op=int(hvd.Sum),
        process_set_id=process_set_id,
    )
    expected = sum(pattern((30,), rank, "float32") for rank in ranks)
    np.testing.assert_array_equal(output, expected)


def test_mistakes_are_errors_on_all_ranks(device: Device) -> None:
    ones = [np.ones((4,))]

    def fails(error: type[Exception], text: str, *args, **options) -> None:
        with pytest.raises(error, match=text):
            run(device, "allreduce", "m", *args, op=int(hvd.Sum), **options)
        (output,) = run(device, "allreduce", "m", ones, op=int(hvd.Sum))
        np.testing.assert_array_equal(output, [float(hvd.size())] * 4)

    fails(InvalidArgumentError, "NCCL does not reduce int16", ones, "int16")
    fails(InvalidArgumentError, "scale factors", ones, "int32", prescale=2.0)
    is_last = hvd.rank() == hvd.size() - 1
    text = f"rank {hvd.size() - 1} cannot take part: the GPU must be in"
    place = 99 if is_last else device.ordinal
    fails(InvalidArgumentError, text, ones, ordinal=place)
    if hvd.size() == 1:
        return
    shape = [np.ones((4 + hvd.rank() % 2,))]
    fails(MismatchError, "the shape: \\[4\\] on rank.* \\[5\\] on", shape)

    def on_the_cpu_of_others() -> None:
        if hvd.rank() == 0:
            run(device, "allreduce", "c", ones, op=int(hvd.Sum))
        else:
            array = np.ones((4,), np.float32)
            _native.core().allreduce("c", [array], int(hvd.Sum))

    with pytest.raises(MismatchError, match="a GPU on rank 0; the CPU on"):
        on_the_cpu_of_others()
