"""Torch's gradients, which are never traced, are reduced in place."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import small_training as small
import torch

import hvd_keras as hvd


def variables(*shapes: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    return [keras.Variable(np.zeros(shape), dtype=dtype) for shape in shapes]


def sgd() -> Any:
    return hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))


def test_gradients_are_reduced_in_place() -> None:
    (weight,) = variables((2, 3))
    gradient = torch.full((2, 3), float(hvd.rank()))
    sgd().apply([gradient], [weight])
    np.testing.assert_array_equal(gradient, np.full((2, 3), 0.5))
    np.testing.assert_array_equal(weight.numpy(), np.full((2, 3), -0.5))


def test_gradients_that_share_memory_are_reduced_once() -> None:
    weights = variables((2,), (2,), (2, 2), (2,))
    whole = torch.full((2, 2), 2.0 * hvd.rank())
    shared = [whole[0], whole[0], whole.t(), torch.ones(1).expand(2)]
    sgd().apply(shared, weights)
    expected = [-np.ones(2), -np.ones(2), -np.ones((2, 2)), -np.ones(2)]
    for weight, value in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


def test_bfloat16_and_scalars() -> None:
    (weight,) = variables((), dtype="bfloat16")
    gradient = torch.tensor(2.0 * hvd.rank(), dtype=torch.bfloat16)
    sgd().apply([gradient], [weight])
    assert float(weight.value.detach()) == -1.0
    hvd.broadcast_variables([weight], 1)
    small.on_all_ranks([weight.value.detach().float().numpy()])


def test_float8_is_broadcast() -> None:
    (weight,) = variables((2,), dtype="float8_e5m2")
    weight.assign(torch.tensor([0.5, 2.0]) * hvd.rank())
    hvd.broadcast_variables([weight], 1)
    assert weight.value.detach().float().tolist() == [0.5, 2.0]


def test_dtypes_without_a_collective_are_refused_by_name() -> None:
    (weight,) = variables((2,))
    for dtype in (torch.complex64, torch.float8_e4m3fn):
        gradient = torch.zeros(2, dtype=dtype)
        text = f"bucket_0': a tensor must.*{str(dtype)[6:]}"
        with pytest.raises(hvd.InvalidArgumentError, match=text):
            sgd().apply([gradient], [weight])


def test_unequal_gradients_in_a_later_step_are_an_error() -> None:
    weights = variables((2,), (2,))
    optimizer = sgd()
    optimizer.apply([torch.ones(2), torch.ones(2)], weights)
    gradients = [torch.ones(2), torch.ones(2)]
    if hvd.rank() == 1:
        gradients[0] = None
    with pytest.raises(hvd.MismatchError, match="bucket_0"):
        optimizer.apply(gradients, weights)
    optimizer.apply([torch.ones(2), torch.ones(2)], weights)
    np.testing.assert_array_equal(weights[1].numpy(), [-2.0, -2.0])
