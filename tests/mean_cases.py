"""Trains with losses whose ranks have unequal counts, on any backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd

GLOBAL_BATCH = 24
NUM_STEPS = 6  # of a sequence
NUM_WORDS = 12

Data = tuple[Any, ...]


def rows(num_rows: int) -> Data:
    generator = np.random.default_rng(7)
    x = generator.normal(size=(num_rows, 5)).astype(np.float32)
    y = generator.normal(size=(num_rows, 1)).astype(np.float32)
    return x, y


def weighted_rows(num_rows: int) -> Data:
    """Weights that grow, so that the ranks' sums differ."""
    weights = np.linspace(0.0, 3.0, num_rows, dtype=np.float32)
    return (*rows(num_rows), weights)


def sequences(num_rows: int) -> Data:
    """Words that 0 pads, sorted by length within each global batch."""
    generator = np.random.default_rng(5)
    lengths = generator.integers(1, NUM_STEPS + 1, num_rows)
    for first in range(0, num_rows, GLOBAL_BATCH):
        lengths[first : first + GLOBAL_BATCH].sort()
    words = generator.integers(1, NUM_WORDS, (num_rows, NUM_STEPS))
    words[np.arange(NUM_STEPS) >= lengths[:, None]] = 0
    y = generator.normal(size=(num_rows, NUM_STEPS, 1)).astype(np.float32)
    return words, y


def weighted_sequences(num_rows: int) -> Data:
    words, y = sequences(num_rows)
    weights = np.linspace(0.0, 3.0, words.size, dtype=np.float32)
    return words, y, weights.reshape(words.shape)


def two_sequences(num_rows: int) -> Data:
    """Two inputs with masks of their own, and a target of each."""
    a, y = sequences(num_rows)
    b = np.where(np.arange(num_rows)[:, None] % 5 == 0, 0, a[:, ::-1])
    return {"a": a, "b": b}, {"out_a": y, "out_b": -y}


def dense_model(**losses: Any) -> keras.Model:
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(
        4, activation="tanh", kernel_regularizer=losses.pop("l2", None)
    )(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def sequence_model() -> keras.Model:
    inputs = keras.Input((NUM_STEPS,), dtype="int32")
    hidden = keras.layers.Embedding(NUM_WORDS, 3, mask_zero=True)(inputs)
    hidden = keras.layers.Dense(4, activation="tanh")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def two_sequence_model() -> keras.Model:
    inputs, outputs = {}, {}
    for name in "ab":
        inputs[name] = keras.Input((NUM_STEPS,), dtype="int32", name=name)
        hidden = keras.layers.Embedding(NUM_WORDS, 3, mask_zero=True)(
            inputs[name]
        )
        layer = keras.layers.Dense(1, name=f"out_{name}")
        outputs[f"out_{name}"] = layer(hidden)
    return keras.Model(inputs, outputs)


def regularized_model() -> keras.Model:
    return dense_model(l2=keras.regularizers.L2(0.1))


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its loss, and data of some rows."""

    make_model: Callable[[], keras.Model] = dense_model
    make_data: Callable[[int], Data] = rows
    num_rows: int = 2 * GLOBAL_BATCH + 5
    reduction: str = "sum_over_batch_size"
    policy: str = "split"
    op: Any = hvd.Average
    metrics: tuple[str, ...] = ("mae",)
    compile: dict[str, Any] = dataclasses.field(default_factory=dict)

    def loss(self) -> Any:
        return keras.losses.MeanSquaredError(reduction=self.reduction)


CASES = {
    "rest": Case(),
    "rest_pad": Case(policy="pad"),
    "fewer_rows_than_ranks": Case(num_rows=2 * GLOBAL_BATCH + 1),
    "fewer_rows_pad": Case(num_rows=2 * GLOBAL_BATCH + 1, policy="pad"),
    "nearly_full_rest": Case(num_rows=2 * GLOBAL_BATCH - 1),
    "mask": Case(sequence_model, sequences, 2 * GLOBAL_BATCH),
    "mask_rest": Case(sequence_model, sequences),
    "mask_pad": Case(sequence_model, sequences, policy="pad"),
    "two_masks": Case(two_sequence_model, two_sequences, metrics=()),
    "weights": Case(make_data=weighted_rows),
    "weights_pad": Case(make_data=weighted_rows, policy="pad"),
    "mean_with_weights": Case(
        make_data=weighted_rows, reduction="mean_with_sample_weight"
    ),
    "masked_mean_with_weights": Case(
        sequence_model,
        sequences,
        2 * GLOBAL_BATCH,
        "mean_with_sample_weight",
    ),
    "masked_weights_pad": Case(
        sequence_model,
        weighted_sequences,
        reduction="mean_with_sample_weight",
        policy="pad",
    ),
    "sum": Case(regularized_model, reduction="sum"),
    "sum_op": Case(regularized_model, reduction="sum", op=hvd.Sum),
    "xla": Case(compile={"jit_compile": True}, policy="pad"),
    "mask_xla": Case(
        sequence_model,
        sequences,
        2 * GLOBAL_BATCH,
        compile={"jit_compile": True},
    ),
}


def compiled(case: Case, optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = case.make_model()
    loss: Any = case.loss()
    if isinstance(model.output, dict):
        loss = {name: case.loss() for name in model.output}
    metrics = list(case.metrics)
    model.compile(
        optimizer,
        loss,
        metrics=metrics,
        weighted_metrics=["mse"] if metrics else None,
        **case.compile,
    )
    return model


def assert_equals_one_process(case: Case) -> None:
    """Trains with one process and with all ranks, and compares everything."""
    data = case.make_data(case.num_rows)
    make_optimizer = lambda: keras.optimizers.SGD(0.01, momentum=0.9)  # noqa: E731
    x, y, weights = (*data, None)[:3]
    model = compiled(case, make_optimizer())
    options: dict[str, Any] = {"verbose": 0, "shuffle": False}
    expected = model.fit(
        x, y, GLOBAL_BATCH, epochs=2, sample_weight=weights, **options
    ).history
    wanted = model.evaluate(
        x, y, GLOBAL_BATCH, 0, sample_weight=weights, return_dict=True
    )
    expected_weights = model.get_weights()

    optimizer = hvd.DistributedOptimizer(make_optimizer(), op=case.op)
    model = compiled(case, optimizer)
    share = hvd.shard(
        data, batch_size=GLOBAL_BATCH // hvd.size(), policy=case.policy
    )
    average = hvd.callbacks.MetricAverageCallback()
    found = model.fit(share, epochs=2, callbacks=[average], **options).history
    evaluated = model.evaluate(
        share, verbose=0, return_dict=True, callbacks=[average]
    )
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(
            found[key], values, rtol=1e-5, err_msg=f"fit: {key}"
        )
    for key, value in wanted.items():
        np.testing.assert_allclose(
            evaluated[key], value, rtol=1e-5, err_msg=f"evaluate: {key}"
        )
    own = model.get_weights()
    for other in hvd.allgather_object(own):
        for mine, theirs in zip(own, other, strict=True):
            assert mine.tobytes() == theirs.tobytes()
    for mine, one in zip(own, expected_weights, strict=True):
        scale = max(np.abs(one).max(), 1e-3)
        np.testing.assert_allclose(mine, one, rtol=0, atol=1e-5 * scale)
