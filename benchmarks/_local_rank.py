r"""One rank of `hosts.py --local_updates`, `--digits` or `--text`: trains.

    hvdrun ... python benchmarks/_local_rank.py TASK ROUNDS STEPS SEEDS \
        TRAINED OPTIMIZER WAYS...

TASK is digits, for a CNN, or text: a small Transformer that says the next
letter of Python's own sources. It trains in turns, with a reduction in each
step (0), with local updates after so many steps, and with a compression (its
name). OPTIMIZER is adam, or sgd with momentum. Rank 0 prints a JSON line: for
each way the milliseconds of a step and what its host sent for one, of each
round; and of each seed the accuracy of a training of TRAINED steps. Each
training is one epoch. The environment's RECORD_TO names a folder: each round of
0 is recorded into one of its own there.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import _common
import numpy as np
from _hosts_rank import bytes_sent, compression_of

import hvd_keras as hvd

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks
BATCH = 32
NUM_CLASSES = 10
NUM_TEST = 360
LENGTH, NUM_LETTERS, WIDTH = 64, 96, 96  # of the text, and of its Transformer
NUM_PIECES = 16_000


def every_of(way: str) -> int:
    """Returns the steps of a way between two meetings; 0: no local updates."""
    return int(way) if way.isdigit() else 0


def cnn() -> Any:
    """Returns a CNN of a million parameters."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(NUM_CLASSES, activation="softmax"),
        ]
    )


def transformer() -> Any:
    """Returns a causal Transformer of two blocks."""
    import keras

    layers, ops = keras.layers, keras.ops
    letters = keras.Input((LENGTH,), dtype="int32")
    positions = ops.zeros_like(letters) + ops.arange(LENGTH)
    x = layers.Embedding(NUM_LETTERS, WIDTH)(letters)
    x += layers.Embedding(LENGTH, WIDTH)(positions)
    for _ in range(2):
        before = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(4, WIDTH // 4)(
            before, before, use_causal_mask=True
        )
        hidden = layers.Dense(4 * WIDTH, "relu")(layers.LayerNormalization()(x))
        x += layers.Dense(WIDTH)(hidden)
    x = layers.LayerNormalization()(x)
    return keras.Model(letters, layers.Dense(NUM_LETTERS, "softmax")(x))


def make_model(task: str, way: str, seed: int, optimizer_name: str) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    model = cnn() if task == "digits" else transformer()
    every = every_of(way)
    if optimizer_name == "sgd":
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    else:
        optimizer = keras.optimizers.Adam(1e-3)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        compression=compression_of("none" if way.isdigit() else way),
        local_updates=hvd.LocalUpdates(every) if every else None,
    )
    model.compile(
        optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns pictures and their labels."""
    import sklearn.datasets

    x, y = sklearn.datasets.load_digits(return_X_y=True)
    return (x / 16).astype(np.float32).reshape(-1, 8, 8, 1), y


def text() -> tuple[np.ndarray, np.ndarray]:
    """Returns pieces of Python's sources, and each letter's next one."""
    folder = pathlib.Path(os.__file__).parent
    sources = b"".join(
        path.read_bytes() for path in sorted(folder.glob("*.py"))
    )
    letters = np.frombuffer(sources, np.uint8).clip(31, 126) - 31
    letters = letters[: NUM_PIECES * LENGTH + 1].astype(np.int32)
    shape = NUM_PIECES, LENGTH
    return letters[:-1].reshape(shape), letters[1:].reshape(shape)


def rows(task: str, seed: int) -> tuple[Any, Any]:
    """Returns this rank's batches, without end, and the rows of the test."""
    import tensorflow as tf

    x, y = digits() if task == "digits" else text()
    order = np.random.default_rng(seed).permutation(len(x))
    test, train = order[:NUM_TEST], order[NUM_TEST:]
    mine = train[hvd.rank() :: hvd.size()]
    data = tf.data.Dataset.from_tensor_slices((x[mine], y[mine]))
    data = data.shuffle(len(mine), seed=seed).repeat()
    data = data.batch(BATCH, drop_remainder=True).prefetch(2)
    return _common.untuned(data), (x[test], y[test])


def train(model: Any, data: Any, num_steps: int) -> tuple[float, float]:
    """Returns milliseconds and bytes of a step."""
    _common.wait_for_all()
    sent, start = bytes_sent(), time.perf_counter()
    model.fit(data, steps_per_epoch=num_steps, verbose=0)
    seconds = time.perf_counter() - start
    _common.wait_for_all()
    return 1e3 * seconds / num_steps, (bytes_sent() - sent) / num_steps


@contextlib.contextmanager
def recorded(way: str, number: int) -> Iterator[None]:
    """Records the training of a round, if that is wanted."""
    folder = os.environ.get("RECORD_TO")
    if folder is None or way != "0":
        yield
        return
    hvd.start_timeline(os.path.join(folder, str(number)))
    yield
    hvd.stop_timeline()


def main(
    task: str,
    num_rounds: int,
    num_steps: int,
    num_seeds: int,
    num_trained: int,
    optimizer: str,
    ways: list[str],
) -> None:
    hvd.init()
    figures: dict[str, dict[str, list[float]]] = {
        way: {"ms": [], "sent": [], "accuracy": []} for way in ways
    }
    data, _ = rows(task, 0)
    models = {way: make_model(task, way, 0, optimizer) for way in ways}
    for model in models.values() if num_rounds else ():
        train(model, data, 2)  # it traces
    for number in range(num_rounds):
        for way, model in models.items():
            # A step that sends all takes long enough.
            steps = num_steps if every_of(way) else num_steps // 2
            with recorded(way, number):
                ms, sent = train(model, data, steps)
            slowest = _common.gather_over_ranks([ms]).max()
            figures[way]["ms"].append(float(slowest))
            figures[way]["sent"].append(sent)
    for seed in range(num_seeds):
        data, test = rows(task, seed)
        for way in ways:
            model = make_model(task, way, seed, optimizer)
            train(model, data, num_trained)
            accuracy = model.evaluate(*test, verbose=0)[1]
            figures[way]["accuracy"].append(accuracy)
    if hvd.rank() == 0:
        num_bytes = 4 * models[ways[0]].count_params()
        print(json.dumps({"bytes": num_bytes, "ways": figures}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    rounds, steps, seeds, trained = map(int, sys.argv[2:6])
    main(sys.argv[1], rounds, steps, seeds, trained, sys.argv[6], sys.argv[7:])
