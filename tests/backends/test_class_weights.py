"""`class_weight` weighs as in one process, in each `fit` of a model anew."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

BATCH = 6  # rows of a global batch; the last one has fewer
NUM_ROWS = 26
# Class 2 has a weight in none, so it counts once.
WEIGHTS: list[dict[int, float] | None] = [
    {0: 2.0, 1: 0.5},
    None,
    {0: 0.0, 1: 3.0},
    {0: 2.0, 1: 0.5},
]
# Shapes of targets, for a row.
FORMS = {"number": (), "column": (1,), "one_hot": (3,)}
if keras.backend.backend() == "tensorflow":
    FORMS["pixels"] = (4, 4, 1)  # on the others, Keras takes none in arrays


def data(form: str) -> tuple[Any, Any, Any]:
    """Returns rows, their targets, and the class of each part of a target."""
    generator = np.random.default_rng(7)
    shape = (NUM_ROWS, 4, 4) if form == "pixels" else (NUM_ROWS,)
    x = generator.normal(size=(*shape, 3)).astype("float32")
    classes = generator.integers(0, 3, shape)
    targets: Any = classes
    if form == "one_hot":
        targets = keras.utils.to_categorical(classes, 3)
    return x, np.reshape(targets, (NUM_ROWS, *FORMS[form])), classes


def model(form: str, optimizer: Any) -> keras.Model:
    loss: Any = keras.losses.SparseCategoricalCrossentropy
    if form == "one_hot":
        loss = keras.losses.CategoricalCrossentropy
    layer = keras.layers.Dense(3)
    made = keras.Sequential([keras.Input(data(form)[0].shape[1:]), layer])
    kernel = np.random.default_rng(3).normal(size=(3, 3))
    made.set_weights([kernel, np.zeros(3)])
    made.compile(optimizer, loss(from_logits=True))
    return made


@pytest.mark.parametrize("form", FORMS)
def test_each_fit_weighs_by_its_own_classes(form: str) -> None:
    x, y, classes = data(form)
    one = model(form, keras.optimizers.SGD(0.1))
    ours = model(form, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    for class_weight in WEIGHTS:
        known = {0: 1.0, 1: 1.0, 2: 1.0, **(class_weight or {})}
        weights = np.vectorize(known.get)(classes).astype("float32")
        for first in range(0, NUM_ROWS, BATCH):
            rows = slice(first, first + BATCH)
            one.train_on_batch(x[rows], y[rows], sample_weight=weights[rows])
        ours.fit(
            hvd.shard((x, y), global_batch_size=BATCH),
            verbose=0,
            callbacks=[begin],
            class_weight=class_weight,
        )
        for value, wanted in zip(
            ours.get_weights(), one.get_weights(), strict=True
        ):
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    "keras.backend.backend() != 'tensorflow'",
    reason="Keras has no error of its own on the others",
)
def test_several_targets_are_refused() -> None:
    inputs = keras.Input((3,))
    outputs = [keras.layers.Dense(3)(inputs) for _ in range(2)]
    two = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    two.compile(hvd.DistributedOptimizer("sgd"), [loss, loss])
    x, y, _ = data("number")
    with pytest.raises(ValueError, match="with one output"):
        two.fit(
            hvd.shard((x, (y, y)), global_batch_size=BATCH),
            verbose=0,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
            class_weight={0: 2.0},
        )


class OneValue(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.losses.mean_squared_error(y_true, y_pred))


@pytest.mark.parametrize(
    "reduction", ["sum_over_batch_size", "mean_with_sample_weight"]
)
@pytest.mark.parametrize("by_class", [True, False])
def test_a_loss_of_one_value_is_weighed_by_all_rows(
    by_class: bool, reduction: Any
) -> None:
    loss = OneValue(reduction=reduction)

    x, y, classes = data("column")
    weights = np.random.default_rng(1).random(NUM_ROWS).astype("float32")
    shared: Any = (x, y, weights)
    class_weight = None
    if by_class:
        class_weight = {0: 1.0, 1: 5.0, 2: 0.5}
        weights = np.vectorize(class_weight.get)(classes).astype("float32")
        shared = (x, y)
    one = model("column", keras.optimizers.SGD(0.1))
    ours = model("column", hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    one.compile(one.optimizer, loss)
    ours.compile(ours.optimizer, loss)
    for first in range(0, NUM_ROWS, BATCH):
        rows = slice(first, first + BATCH)
        one.train_on_batch(x[rows], y[rows], sample_weight=weights[rows])
    ours.fit(
        hvd.shard(shared, global_batch_size=BATCH, policy="split"),
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        class_weight=class_weight,
    )
    for value, wanted in zip(
        ours.get_weights(), one.get_weights(), strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
