"""Ranks begin with the same model, on JAX and torch too, or say why not."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd
from hvd_keras._common import log
from hvd_keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    ConsistencyCheck,
)


def sgd(**options: Any) -> Any:
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, **options)
    return hvd.DistributedOptimizer(optimizer)


def test_fit_and_train_on_batch_without_a_broadcast() -> None:
    x, y = small.data()
    model = small.model(seed=hvd.rank())
    model.compile(sgd(), "mse")
    words = r"BroadcastGlobal.*dense.*kernel.*on rank 0"
    with pytest.raises(hvd.MismatchError, match=words):
        model.fit(small.shares(x, y), verbose=0)
    with pytest.raises(hvd.MismatchError, match=r"dense.*kernel"):
        hvd.assert_equal_on_all_ranks(model)
    model = small.model(seed=hvd.rank())
    model.compile(sgd(), "mse")
    with pytest.raises(hvd.MismatchError, match=words):
        model.train_on_batch(x[:8], y[:8])


def test_the_first_apply_of_a_loop() -> None:
    weight = keras.Variable(np.full(3, float(hvd.rank())))
    optimizer = sgd()
    ones = keras.ops.ones(3)
    with pytest.raises(hvd.MismatchError, match="broadcast_variables"):
        optimizer.apply([ones], [weight])
    hvd.broadcast_variables([weight])
    optimizer = sgd()
    optimizer.apply([keras.ops.ones(3)], [weight])
    small.on_all_ranks([keras.ops.convert_to_numpy(weight)])


def test_all_that_differs_is_broadcast_or_named() -> None:
    x, y = small.data()
    normalize = keras.layers.Normalization()
    normalize.adapt(x[hvd.rank() :: 2])
    bins = keras.layers.Discretization(num_bins=3)
    inputs = keras.Input((small.NUM_FEATURES,))
    outputs = keras.layers.Dense(1)(normalize(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(sgd(), "mse")
    broadcast = BroadcastGlobalVariablesCallback(1)
    for _ in range(2):
        model.fit(small.shares(x, y), verbose=0, callbacks=[broadcast])
        small.on_all_ranks([model.predict(x, verbose=0)])
        normalize.adapt(x[hvd.rank() :: 2])
    bins.adapt(x[hvd.rank() :: 2])
    model = keras.Model(
        inputs, keras.layers.Dense(1)(keras.ops.cast(bins(inputs), "float32"))
    )
    model.compile(sgd(), "mse")
    with pytest.raises(hvd.MismatchError, match="bin boundaries"):
        model.fit(small.shares(x, y), verbose=0, callbacks=[broadcast])


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.thorough)]
)
def test_float8_scales_alike(jit_compile: bool) -> None:
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("slow to compile")
    x, y = small.data()
    x[1::2] *= 3.0
    model = small.model()
    model.quantize("float8")
    model.compile(sgd(), "mse", jit_compile=jit_compile)
    model.fit(small.shares(x, y), verbose=0)
    small.on_all_ranks(model.get_weights())


def test_the_same_data_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lines.append)
    x, y = small.data()
    model = small.model()
    model.compile(sgd(), "mse")
    broadcast = BroadcastGlobalVariablesCallback()
    model.fit(small.shares(x, y), verbose=0, callbacks=[broadcast])
    assert not lines
    model.fit(x, y, shuffle=False, verbose=0, callbacks=[broadcast])
    assert len(lines) == (hvd.rank() == 0)


@pytest.mark.parametrize("what", ["drawn", "length", "batch_size"])
def test_unequal_data_are_told_with_their_cure(what: str) -> None:
    rank = hvd.rank()
    rows, words = np.zeros(32), "Pass the same `batch_size` on all ranks"
    if what == "drawn":
        rows = np.random.default_rng(rank).normal(size=32)
        words = "float64 of shape.*np.random.default_rng.1.`"
    elif what == "length":
        rows, words = rows[rank:], "32 rows on rank 0; 31 rows on rank 1.*share"
    batch_size = 2 + rank if what == "batch_size" else 2
    with pytest.raises(hvd.MismatchError, match=words) as raised:
        hvd.shard(rows, batch_size=batch_size)
    assert "tf.data" not in str(raised.value)


@pytest.mark.parametrize("equal_seeds", [True, False])
def test_drawn_arrays(
    monkeypatch: pytest.MonkeyPatch, equal_seeds: bool
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lines.append)
    keras.utils.set_random_seed(3 if equal_seeds else 3 + hvd.rank())
    x, y = np.random.rand(16, small.NUM_FEATURES), np.random.rand(16, 1)
    model = small.model()
    model.compile(sgd(), "mse")
    model.fit(x, y, verbose=0, callbacks=[BroadcastGlobalVariablesCallback()])
    assert len(lines) == (equal_seeds and hvd.rank() == 0)
    assert all("drawn the same numbers" in line for line in lines)


class Spoil(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 3:
            weight = self.model.layers[-1].kernel
            weight.assign(weight + float(hvd.rank()))


def test_the_step_that_differs_is_named() -> None:
    model = small.model()
    model.compile(sgd(), "mse")
    check = ConsistencyCheck(every=2)
    words = r"after step 4 .*batch 3\): .*kernel.* on rank 1 "
    with pytest.raises(hvd.MismatchError, match=words):
        model.fit(
            small.shares(*small.data()), verbose=0, callbacks=[check, Spoil()]
        )


@pytest.mark.parametrize("passes", [1, 2])
def test_an_update_that_is_not_finite_is_skipped(passes: int) -> None:
    x, y = small.data()
    model = small.model()
    accumulation = None if passes == 1 else passes
    model.compile(sgd(gradient_accumulation_steps=accumulation), "mse")
    share = small.shares(x, y)
    bad = y.copy()
    bad[2 * small.BATCH + small.BATCH // 2] = np.nan  # of rank 1
    check = ConsistencyCheck(every=1, nonfinite="skip")
    model.fit(small.shares(x, bad), verbose=0, shuffle=False, callbacks=[check])
    small.on_all_ranks(model.get_weights())
    assert all(np.isfinite(w).all() for w in model.get_weights())
    model.fit(share, verbose=0)
    check = ConsistencyCheck(every=1, nonfinite="raise")
    with pytest.raises(FloatingPointError, match="from rank 1 in step 3 of"):
        model.fit(
            small.shares(x, bad), verbose=0, shuffle=False, callbacks=[check]
        )
