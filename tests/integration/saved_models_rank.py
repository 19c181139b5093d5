"""One rank that trains and saves models; test_saved_models.py runs it."""

from __future__ import annotations

import pathlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd
from hvd_keras._gradients.distributed_class import is_distributed

layers, optimizers = keras.layers, keras.optimizers
schedules = optimizers.schedules
FIRST = hvd.ProcessSet([0])


def with_layer(*added: Any) -> keras.Model:
    return keras.Sequential(
        [keras.Input((4, 3)), *added, layers.Flatten(), layers.Dense(2)]
    )


def plain() -> keras.Model:
    return with_layer(layers.Dense(3, activation="tanh"))


def of_other_models() -> keras.Model:
    norm = hvd.SyncBatchNormalization(name="twice")
    inputs = keras.Input((4, 3))
    inner = keras.Sequential([keras.Input((4, 3)), layers.Dense(3)])
    outputs = layers.TimeDistributed(hvd.SyncBatchNormalization())(
        norm(inner(norm(inputs)))
    )
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(outputs)))


def converted() -> keras.Model:
    inner = keras.Sequential(
        [keras.Input((4, 3)), layers.BatchNormalization(momentum=0.8)]
    )
    return hvd.convert_sync_batch_normalization(
        with_layer(inner, layers.BatchNormalization(scale=False))
    )


Made = tuple[Callable[[], keras.Model], Callable[[], Any]]
CASES: dict[str, Made] = {
    "adam": (plain, lambda: optimizers.Adam(0.01)),
    "sgd": (plain, lambda: optimizers.SGD(0.01, momentum=0.9)),
    "decay": (
        plain,
        lambda: optimizers.AdamW(schedules.ExponentialDecay(0.1, 2, 0.9)),
    ),
    "scaled": (
        plain,
        lambda: optimizers.LossScaleOptimizer(
            optimizers.RMSprop(hvd.Warmup(0.01, 5))
        ),
    ),
    "warmup": (plain, lambda: optimizers.Adam(hvd.Warmup(0.01, 5))),
    "short": (plain, lambda: optimizers.Adam(hvd.Warmup(0.01, 1))),
    "both": (
        plain,
        lambda: optimizers.SGD(
            hvd.Warmup(hvd.Warmup(schedules.CosineDecay(0.1, 9), 4), 3), 0.9
        ),
    ),
    "layer": (
        lambda: with_layer(hvd.SyncBatchNormalization(epsilon=0.1)),
        lambda: "sgd",
    ),
    "set": (
        lambda: with_layer(hvd.SyncBatchNormalization(process_set=FIRST)),
        lambda: "sgd",
    ),
    "models": (of_other_models, lambda: "adam"),
    "converted": (converted, lambda: "adam"),
    "synchronized": (
        lambda: with_layer(layers.BatchNormalization(synchronized=True)),
        lambda: "adam",
    ),
}


def kinds_of(model: keras.Model) -> list[Any]:
    """What a model is made of, as far as it is ours or synchronized."""
    kinds: list[Any] = []
    for layer in model._flatten_layers():
        kinds.append(type(layer))
        if isinstance(layer, layers.BatchNormalization):
            kinds.append(layer.synchronized)
            kinds.append(getattr(layer, "process_set", None))
    optimizer = model.optimizer
    rate = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
    if isinstance(rate, hvd.Warmup):
        kinds.append(rate.get_config())
    return kinds


def values_of(variables: list[Any]) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(each) for each in variables]


def main(folder: pathlib.Path) -> None:
    hvd.init(process_sets=[FIRST])
    x = np.random.default_rng(0).normal(size=(32, 4, 3)).astype(np.float32)
    y = x[:, :2, 0]
    expected = {}
    for name, (make, optimizer) in CASES.items():
        keras.utils.set_random_seed(0)
        model = make()
        model.compile(
            hvd.DistributedOptimizer(optimizer()),
            keras.losses.Huber(),
            metrics=["mae", keras.metrics.MeanSquaredError()],
            weighted_metrics=[keras.metrics.RootMeanSquaredError()],
        )
        model.fit(
            hvd.shard((x, y), batch_size=4),
            epochs=1,
            verbose=0,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
            ],
        )
        file = folder / f"{name}.keras"
        if hvd.rank() == 0:
            model.save(file)
            model.save_weights(file.with_suffix(".weights.h5"))
        expected[file.name] = (
            x,
            model.predict(x, verbose=0),
            values_of(model.optimizer.variables),
            float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)),
        )
        hvd.barrier()
        for loaded in (hvd.load_model(file), keras.models.load_model(file)):
            assert kinds_of(loaded) == kinds_of(model), name
        copied = keras.models.clone_model(model)
        copied.compile("sgd")
        made = [kind for kind in kinds_of(model) if not isinstance(kind, dict)]
        assert kinds_of(copied) == made, name
        assert not is_distributed(loaded.optimizer)
    if hvd.rank() == 0:
        (folder / "expected.pickle").write_bytes(pickle.dumps(expected))


main(pathlib.Path(sys.argv[1]))
