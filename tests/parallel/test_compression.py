"""`hvd.Compression` and the user's own compressors."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

COMPRESSIONS = {
    "none": (hvd.Compression.none, None),
    "fp16": (hvd.Compression.fp16, tf.float16),
    "bf16": (hvd.Compression.bf16, tf.bfloat16),
    "int8": (hvd.Compression.int8, None),
    "int4": (hvd.Compression.int4, None),
    "PowerSGD": (hvd.Compression.PowerSGD(rank=2), None),
}
DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int8"]


class Negating(hvd.Compressor):
    """Sends the negative; `ctx` is the factor that undoes it."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return -tensor, -1

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor * ctx


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_compressed_tensors_get_their_dtype_back(name: str, dtype: str) -> None:
    compression, wire_dtype = COMPRESSIONS[name]
    tensor = tf.cast([1, 2, 3], dtype)
    wire, ctx = compression.compress(tensor)
    if wire_dtype is None or not tensor.dtype.is_floating:
        assert wire.dtype == tensor.dtype
    elif tensor.dtype.size > 2:
        assert wire.dtype == wire_dtype
    else:
        assert wire.dtype == tensor.dtype
    back = compression.decompress(wire, ctx)
    assert back.dtype == tensor.dtype
    np.testing.assert_array_equal(back, tensor)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_every_reduction_takes_a_compression(
    run, rank, process_set, name: str
) -> None:
    compression = COMPRESSIONS[name][0]
    ranks = process_set.ranks
    size = len(ranks)
    options = {"compression": compression, "process_set": process_set}

    def reduce(x: tf.Tensor, y: tf.Tensor) -> list[Any]:
        return [
            hvd.allreduce(x, hvd.Sum, **options),
            hvd.grouped_allreduce([x, y], hvd.Sum, **options),
            hvd.reducescatter(x, hvd.Sum, **options),
            hvd.grouped_reducescatter([x, y], hvd.Sum, **options),
        ]

    x, y = np.full([size], rank, "f4"), np.full([size], rank, "i8")
    one, group, share, shares = run(reduce, x, y)
    total = sum(ranks)
    assert one.tolist() == [total] * size
    assert [tensor.tolist() for tensor in group] == [[total] * size] * 2
    assert share.tolist() == [total]
    assert [tensor.tolist() for tensor in shares] == [[total]] * 2
    dtypes = [tensor.dtype for tensor in (one, *group, share, *shares)]
    assert dtypes == [x.dtype, x.dtype, y.dtype, x.dtype, x.dtype, y.dtype]


def test_only_the_wire_has_half_precision(rank, size) -> None:
    """2048 + 1 + 1 is 2050 in float32, and 2048 when summed in float16.

    What a host sends to others is rounded, too.
    """
    values = [2048.0, *[1.0] * (size - 1)]
    total = hvd.allreduce(
        values[rank], hvd.Sum, compression=hvd.Compression.fp16
    )
    sums = [
        np.float16(sum(values[first : first + hvd.local_size()]))
        for first in range(0, size, hvd.local_size())
    ]
    assert total == np.float16(sum(map(float, sums)))
    if size == 3 and hvd.cross_size() == 1:
        assert total == 2050


def test_values_are_rounded_on_the_wire(rank) -> None:
    value = 1 + 2.0**-9
    as_bf16 = hvd.allreduce(value, compression=hvd.Compression.bf16)
    as_fp16 = hvd.allreduce(value, compression=hvd.Compression.fp16)
    assert as_bf16 == 1
    assert as_fp16 == value


def test_own_compressor(run, rank, size) -> None:
    def reduce(x: tf.Tensor) -> list[Any]:
        return [
            hvd.allreduce(x, hvd.Max, compression=Negating),
            hvd.grouped_allreduce([x, x + 1], hvd.Max, compression=Negating),
        ]

    one, group = run(reduce, np.float32(rank))
    assert one == 0  # the largest of the negatives
    assert list(group) == [0, 1]


def test_compression_may_be_an_instance_or_none(rank) -> None:
    for compression in (None, Negating()):
        x = tf.constant(float(rank))
        op = hvd.Average
        assert hvd.allreduce(x, op, compression=compression) == hvd.allreduce(x)
        variable = tf.Variable(0.0)
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), compression=compression
        )
        optimizer.apply([x], [variable])
        assert -variable == hvd.allreduce(x)


@pytest.mark.parametrize("compression", ["fp16", 3, hvd.Compression])
def test_other_compressions_are_refused(compression) -> None:
    tape = tf.GradientTape()
    for call in (
        lambda: hvd.allreduce(1.0, compression=compression),
        lambda: hvd.grouped_allreduce([1.0], compression=compression),
        lambda: hvd.reducescatter([1.0], compression=compression),
        lambda: hvd.grouped_reducescatter([[1.0]], compression=compression),
        lambda: hvd.DistributedGradientTape(tape, compression=compression),
    ):
        with pytest.raises(TypeError, match="has no `compress`"):
            call()


def test_gradient_passes_through_compression(run, rank, size) -> None:
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x * 2, hvd.Sum, compression=hvd.Compression.fp16)
        return tape.gradient(y, x)

    assert run(gradient, np.float32(rank)) == 2 * size


@pytest.mark.parametrize("packed", ["int8", "int4", "PowerSGD"])
def test_packing_changes_no_bit_on_one_host(run, rank, packed: str) -> None:
    if hvd.cross_size() > 1:
        pytest.skip("needs one host")
    random = np.random.default_rng(rank)
    arrays = [random.standard_normal(n, np.float32) for n in (100, 10_000)]

    def reduce(*tensors: tf.Tensor) -> list[Any]:
        return [
            result
            for compression in (hvd.Compression.none, COMPRESSIONS[packed][0])
            for result in (
                *hvd.grouped_allreduce(tensors, compression=compression),
                hvd.allreduce(tensors[1], compression=compression),
                hvd.reducescatter(tensors[1], compression=compression),
            )
        ]

    results = run(reduce, *arrays)
    for exact, result in zip(results[:4], results[4:], strict=True):
        np.testing.assert_array_equal(exact, result)


def test_the_gradient_of_an_int8_allreduce_is_one(run, rank, size) -> None:
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            options = {"compression": hvd.Compression.int8}
            (y,) = hvd.grouped_allreduce([x], hvd.Sum, **options)
            loss = tf.reduce_sum(hvd.allreduce(y, hvd.Sum, **options))
        return tape.gradient(loss, x)

    result = run(gradient, np.ones([5000], np.float32))
    np.testing.assert_array_equal(result, np.full([5000], size**2, np.float32))


def test_ranks_with_other_compressions_are_told(rank, size) -> None:
    if size == 1:
        pytest.skip("needs several ranks")
    own = hvd.Compression.int8 if rank == 1 else hvd.Compression.none
    with pytest.raises(
        hvd.MismatchError, match=r"'a/bias'.*the compression: .*int8 on rank 1"
    ):
        hvd.allreduce(np.ones(3, np.float32), name="a/bias", compression=own)


def test_powersgd_says_what_does_not_fit() -> None:
    for rank in (0, 32, 2.0, True):
        with pytest.raises(ValueError, match=r"`rank` must be .*\[1, 31\]"):
            hvd.Compression.PowerSGD(rank)
    with pytest.raises(TypeError, match=r"PowerSGD an instance"):
        hvd.DistributedOptimizer("sgd", compression=hvd.Compression.PowerSGD)


def test_adam_is_warned_of_powersgd(caplog) -> None:
    compression = hvd.Compression.PowerSGD(rank=4, alternate=True)
    logger = logging.getLogger("hvd_keras")
    logger.addHandler(caplog.handler)
    try:
        hvd.DistributedOptimizer("sgd", compression=compression)
        assert "SGD" not in caplog.text
        hvd.DistributedOptimizer("adam", compression=compression)
    finally:
        logger.removeHandler(caplog.handler)
    assert "PowerSGD(rank=4, alternate=True) is made for SGD" in caplog.text


@pytest.mark.parametrize("name", ["int4", "PowerSGD"])
def test_residuals_and_loss_scaling_are_refused(name: str) -> None:
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    compression = COMPRESSIONS[name][0]
    with pytest.raises(ValueError, match=r"rescales.*(Int4Comp|PowerSGD)"):
        hvd.DistributedOptimizer(scaling, compression=compression)
    inner = hvd.DistributedOptimizer(
        keras.optimizers.SGD(), compression=compression
    )
    scaling = keras.optimizers.LossScaleOptimizer(inner)
    variable = keras.Variable(np.ones(2))
    with pytest.raises(ValueError, match="rescales"):
        scaling.apply([np.ones(2, np.float32)], [variable])


def test_a_wire_that_nobody_knows_is_refused() -> None:
    class Unknown(hvd.Compressor):
        wire = "int7"

    with pytest.raises(TypeError, match="'int7'"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), compression=Unknown)
