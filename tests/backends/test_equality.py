"""Ranks with shares of a batch end with the weights of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd

Adam, SGD = keras.optimizers.Adam, keras.optimizers.SGD

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: SGD(0.1, momentum=0.9),
    "adam": lambda: Adam(0.01),
    "clipping": lambda: Adam(0.01, global_clipnorm=0.1),
    "accumulation": lambda: SGD(
        0.1, momentum=0.9, clipnorm=0.1, gradient_accumulation_steps=2
    ),
    "average": lambda: keras.optimizers.AdamW(
        0.01, use_ema=True, ema_momentum=0.5
    ),
}


def train(optimizer: Any, batches: Any, **options: Any) -> keras.Model:
    model = small.model()
    eagerly = options.pop("run_eagerly", False)
    model.compile(optimizer, "mse", run_eagerly=eagerly)
    if keras.backend.backend() == "jax":
        assert model.jit_compile != eagerly
    epochs = 1 if eagerly else 2
    model.fit(*batches, epochs=epochs, verbose=0, shuffle=False, **options)
    return model


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_equals_one_process(kind: str) -> None:
    x, y = small.data()
    expected = train(OPTIMIZERS[kind](), (x, y), batch_size=small.BATCH)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind]())
    before = hvd.stats()["num_requests"]
    model = train(optimizer, [small.shares(x, y)])
    num_requests = hvd.stats()["num_requests"] - before
    for value, wanted in zip(
        small.on_all_ranks(model.get_weights()),
        expected.get_weights(),
        strict=True,
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    # One an update, and one each for `shard`, the data, the model, the
    # gradients, this test, and the order: after 2 and 4 steps, after 2 of the
    # second epoch, and at the ends of both.
    updates = 2 * small.NUM_BATCHES // (2 if kind == "accumulation" else 1)
    assert updates <= num_requests <= updates + 10


def test_eager_training_equals_one_process() -> None:
    x, y = small.data(small.BATCH * 2)
    options = {"gradient_accumulation_steps": 2}
    expected = train(
        Adam(0.01, **options),
        (x, y),
        batch_size=small.BATCH,
        run_eagerly=True,
    )
    optimizer = hvd.DistributedOptimizer(Adam(0.01, **options))
    model = train(optimizer, [small.shares(x, y)], run_eagerly=True)
    for value, wanted in zip(
        model.get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_loss_scaling_skips_on_all_ranks_or_on_none() -> None:
    x, y = small.data()
    x[3 * small.BATCH] = np.inf  # rank 0 has this row
    scaled = keras.optimizers.LossScaleOptimizer
    expected = train(scaled(SGD(0.1)), (x, y), batch_size=small.BATCH)
    optimizer = scaled(hvd.DistributedOptimizer(SGD(0.1)))
    model = train(optimizer, [small.shares(x, y)])
    for value, wanted in zip(
        small.on_all_ranks(model.get_weights()),
        expected.get_weights(),
        strict=True,
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)
    wanted = float(expected.optimizer.dynamic_scale.numpy())
    assert float(optimizer.dynamic_scale.numpy()) == wanted
    iterations = optimizer.inner_optimizer.iterations
    assert int(iterations.numpy()) == 2 * (small.NUM_BATCHES - 1)


def test_the_average_of_weights_moves_with_updates() -> None:
    """Accumulating 2 batches equals training on batches twice as large."""
    x, y = small.data()
    options = {"use_ema": True, "ema_momentum": 0.5}
    expected = train(SGD(0.1, **options), (x, y), batch_size=2 * small.BATCH)
    optimizer = hvd.DistributedOptimizer(
        SGD(0.1, **options), backward_passes_per_step=2
    )
    model = train(optimizer, [small.shares(x, y)])
    for value, wanted in zip(
        model.get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_gradients_travel_compressed(kind: str) -> None:
    x, y = small.data()
    expected = train(SGD(0.1), (x, y), batch_size=small.BATCH)
    before = hvd.stats()["num_bytes"]
    optimizer = hvd.DistributedOptimizer(
        SGD(0.1), compression=getattr(hvd.Compression, kind)
    )
    model = train(optimizer, [small.shares(x, y)])
    num_bytes = hvd.stats()["num_bytes"] - before
    own = sum(weight.size for weight in model.get_weights())
    assert num_bytes < 2 * small.NUM_BATCHES * own * 2 + 2000
    for value, wanted in zip(
        small.on_all_ranks(model.get_weights()),
        expected.get_weights(),
        strict=True,
    ):
        np.testing.assert_allclose(value, wanted, atol=0.05)


@pytest.mark.usefixtures("bucket_of_each")
def test_ranks_may_compile_different_programs() -> None:
    # A bucket for each gradient makes more calls, which have more orders.
    x, y = small.data()
    batch = 4 + 4 * (hvd.rank() % 2)
    x, y = x[: 8 * batch], y[: 8 * batch]
    optimizer = hvd.DistributedOptimizer(SGD(0.1))
    model = train(optimizer, (x, y), batch_size=batch)
    small.on_all_ranks(model.get_weights())


def test_local_variables_keep_their_gradients() -> None:
    x, y = small.data(small.BATCH)
    model = small.model()
    optimizer = hvd.PartialDistributedOptimizer(
        SGD(0.1), local_layers=model.layers[0], scale_local_gradients=False
    )
    model.compile(optimizer, "mse")
    model.fit(small.shares(x, y), verbose=0)
    kernels = hvd.allgather_object(model.get_weights()[0])
    assert not np.allclose(kernels[0], kernels[1], atol=1e-3)
    small.on_all_ranks(model.get_weights()[2:])


def test_ranks_outside_a_process_set_train_alone() -> None:
    x, y = small.data()
    own = slice(hvd.rank() * 48, hvd.rank() * 48 + 48)
    expected = train(SGD(0.1), (x[own], y[own]), batch_size=16)
    hvd.shutdown()
    last = hvd.ProcessSet([1])
    hvd.init(process_sets=[last])
    optimizer = hvd.DistributedOptimizer(SGD(0.1), process_set=last)
    model = train(optimizer, (x[own], y[own]), batch_size=16)
    hvd.shutdown()
    hvd.init()
    for value, wanted in zip(
        model.get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-6)


def test_unequal_gradients_are_an_error_on_all_ranks() -> None:
    model = small.model()
    model.layers[0].trainable = hvd.rank() == 0
    model.compile(hvd.DistributedOptimizer(SGD(0.1)), "mse")
    with pytest.raises(hvd.MismatchError, match="gradients on ranks"):
        model.fit(small.shares(*small.data()), verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()
