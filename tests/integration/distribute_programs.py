"""Programs that know nothing of ranks.

Usage: python distribute_programs.py OUT [shuffled]

Each trains and returns what it got; rank 0's, or that of the one process, goes
into the file OUT.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import keras
import numpy as np

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(7)
X = RNG.normal(size=(53, 6)).astype("float32")
Y = (X[:, :1] - X[:, 1:2] ** 2).astype("float32")
LABELS = (X[:, 0] > 0).astype("int32")
WEIGHTS = RNG.uniform(0.5, 2.0, size=53).astype("float32")
TOKENS = RNG.integers(0, 9, size=(53, 5))


def dense(*last):
    return keras.Sequential(
        [keras.layers.Dense(5, activation="tanh"), *last]
        if last
        else [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )


def compiled(model, loss="mse", **options):
    options.setdefault("metrics", ["mae"])
    model.compile(keras.optimizers.Adam(0.05), loss, **options)
    return model


def found(model, history=None, **more):
    results = {f"w{n}": w for n, w in enumerate(model.get_weights())}
    for name, values in (history.history if history else {}).items():
        results[name] = values
    return {**results, **more}


def sequential():
    model = compiled(dense())
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return found(model, history)


def shuffled():
    model = compiled(dense())
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    history = model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    return found(model, history)


def functional():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    both = keras.layers.Concatenate()([a, keras.layers.Dense(3)(b)])
    outputs = {
        "one": keras.layers.Dense(1, name="one")(both),
        "two": keras.layers.Dense(1, activation="sigmoid", name="two")(both),
    }
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile(
        "sgd",
        {"one": "mse", "two": "binary_crossentropy"},
        loss_weights={"one": 0.5, "two": 1.0},
        metrics={"two": ["accuracy", "AUC"]},
    )
    history = model.fit(
        {"a": X[:, :3], "b": X[:, 3:]},
        {"one": Y, "two": LABELS},
        batch_size=10,
        epochs=2,
        verbose=0,
        shuffle=False,
    )
    return found(model, history)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, activation="tanh")
        self.last = keras.layers.Dense(1)

    def call(self, x):
        return self.last(self.first(x))

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, **kw
    ):
        return keras.ops.mean(keras.ops.abs(y - y_pred))


def subclass():
    model = compiled(Own())
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return found(model, history)


def split():
    model = compiled(dense())
    history = model.fit(
        X, Y, epochs=2, validation_split=0.3, verbose=0, shuffle=False
    )
    return found(model, history)


def held_out():
    model = compiled(dense())
    history = model.fit(
        X[:40],
        Y[:40],
        batch_size=7,
        validation_data=(X[40:], Y[40:], WEIGHTS[40:]),
        validation_batch_size=5,
        verbose=0,
        shuffle=False,
    )
    return found(model, history)


def weighted():
    model = compiled(dense(), weighted_metrics=["mse"])
    history = model.fit(
        X,
        Y,
        batch_size=9,
        sample_weight=WEIGHTS,
        epochs=2,
        verbose=0,
        shuffle=False,
    )
    return found(model, history)


def of_classes():
    model = dense(keras.layers.Dense(2, activation="softmax"))
    compiled(model, "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        X,
        LABELS,
        batch_size=9,
        class_weight={0: 1.0, 1: 3.0},
        epochs=2,
        verbose=0,
        shuffle=False,
    )
    return found(model, history)


def masked():
    layers = [
        keras.layers.Embedding(9, 4, mask_zero=True),
        keras.layers.LSTM(4, use_cudnn=False),
        keras.layers.Dense(1),
    ]
    model = compiled(keras.Sequential(layers))
    history = model.fit(
        TOKENS, Y, batch_size=8, epochs=2, verbose=0, shuffle=False
    )
    return found(model, history)


def normalized():
    model = dense(keras.layers.BatchNormalization(), keras.layers.Dense(1))
    compiled(model)
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return found(model, history)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        return X[rows], Y[rows]


def py_dataset():
    model = compiled(dense())
    history = model.fit(Batches(), epochs=2, verbose=0, shuffle=False)
    results = model.evaluate(Batches(), verbose=0)
    predicted = model.predict(Batches(), verbose=0)
    return found(model, history, results=results, predicted=predicted)


def evaluated():
    model = compiled(dense())
    model.fit(X, Y, verbose=0, shuffle=False)
    results = model.evaluate(X, Y, batch_size=6, verbose=0)
    some = model.evaluate(X[:2], Y[:2], verbose=0, return_dict=True)
    return found(model, results=results, some=some["mae"])


def predicted():
    model = compiled(dense())
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    many = model.predict(X, batch_size=6, verbose=0)
    one = model.predict(X[:1], verbose=0)
    return found(model, many=many, one=one)


def saved():
    model = compiled(dense())
    with tempfile.TemporaryDirectory() as folder:
        # The same for all ranks, as a script would name it.
        folder = os.environ.get("SHARED", folder)
        path = os.path.join(folder, "model.keras")
        best = os.path.join(folder, "best.weights.h5")
        keep = keras.callbacks.ModelCheckpoint(
            best, save_weights_only=True, save_best_only=True, monitor="loss"
        )
        stop = keras.callbacks.EarlyStopping("loss", patience=1)
        model.fit(
            X, Y, epochs=3, callbacks=[keep, stop], verbose=0, shuffle=False
        )
        model.save(path)
        again = keras.models.load_model(path)
        again.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
        model.load_weights(best)
        files = sorted(os.listdir(folder))
    return found(again, many=model.predict(X, verbose=0), files=len(files))


class Pair(keras.Model):
    """Two parts, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.one, self.two = keras.layers.Dense(1), keras.layers.Dense(1)

    def compile(self, first, second):
        super().compile()
        self.optimizers = [first, second]

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        parts = [self.one, self.two]
        losses = []
        for part, optimizer in zip(parts, self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((part(x) - y) ** 2)
            variables = part.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            losses.append(loss)
        return {"one": losses[0], "two": losses[1]}


def two_optimizers():
    model = Pair()
    model.compile(keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.05))
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    # What its step returns is the mean of the ranks' values, not of the rows.
    return found(model)


def generated():
    def batches():
        while True:
            for first in range(0, 53, 8):
                yield X[first : first + 8], Y[first : first + 8]

    model = compiled(dense())
    history = model.fit(batches(), steps_per_epoch=7, epochs=2, verbose=0)
    return found(model, history)


def dataset():
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    data, held_out = rows.shuffle(53, seed=1).batch(8), rows.batch(5)
    # To build a model, Keras would begin to read: another order then.
    model = compiled(keras.Sequential([keras.Input((6,)), *dense().layers]))
    history = model.fit(
        data.prefetch(1), epochs=2, validation_data=held_out, verbose=0
    )
    predicted = model.predict(held_out.take(3), verbose=0)
    return found(model, history, predicted=predicted)


def loader():
    import torch

    rows = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    data = torch.utils.data.DataLoader(rows, batch_size=8)
    model = compiled(dense())
    history = model.fit(data, epochs=2, verbose=0)
    return found(model, history)


def drawn():
    """Whose data and first weights come from generators without a seed."""
    import random

    x = np.random.default_rng().normal(size=(24, 6)).astype("float32")
    x += np.random.normal(size=(24, 6)) + random.random()
    x += keras.ops.convert_to_numpy(keras.random.normal((24, 6)))
    order = np.array(
        [ord(letter) for letter in set("abcdefghijklmnopqrstuvwx")]
    )
    y = order[:, None] / 100.0
    model = compiled(dense())
    history = model.fit(x, y, batch_size=5, epochs=2, verbose=0)
    return found(model, history)


def in_a_loop():
    """Keras trains on single batches: each rank does all of it."""
    model = compiled(dense())
    for first in range(0, 48, 8):
        model.train_on_batch(X[first : first + 8], Y[first : first + 8])
    return found(model)


PROGRAMS = {
    program.__name__: program
    for program in (
        sequential,
        functional,
        subclass,
        split,
        held_out,
        weighted,
        of_classes,
        masked,
        normalized,
        py_dataset,
        evaluated,
        predicted,
        saved,
        in_a_loop,
    )
}
if BACKEND == "tensorflow":
    for program in (two_optimizers, generated):
        PROGRAMS[program.__name__] = program
if BACKEND == "torch":
    PROGRAMS.update(loader=loader)
# Keras alone takes their rows in another order, or draws others.
SHUFFLED = {"shuffled": shuffled, "drawn": drawn}
if BACKEND == "tensorflow":
    SHUFFLED.update(dataset=dataset)


def main() -> None:
    path, *names = sys.argv[1:]
    results = {}
    for name in SHUFFLED if names == ["shuffled"] else PROGRAMS:
        if name != "drawn":
            keras.utils.set_random_seed(1)
        program = {**PROGRAMS, **SHUFFLED}[name]
        for key, value in program().items():
            results[f"{name}.{key}"] = np.asarray(value, np.float64)
    if os.environ.get("HVD_RANK", "0") == "0":
        with pathlib.Path(path).open("wb") as file:
            np.savez(file, **results)


if __name__ == "__main__":
    main()
