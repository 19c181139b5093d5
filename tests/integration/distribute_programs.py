"""Programs that know nothing of ranks.

Usage: python distribute_programs.py OUT [NAME ...]

Each trains and returns what it got; rank 0's, or that of the one process, goes
into the file OUT. Without names all run, in one process those of `PROGRAMS`.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import keras
import numpy as np
from keras.src.backend.common import global_state

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


def counts_of_names():
    """How many objects of each kind Keras has named."""
    counts = global_state.get_global_attribute("object_name_uids", {})
    kinds = "keras_tensor input_layer sequential dense layer seed_generator"
    return np.asarray([counts.get(kind, 0) for kind in kinds.split()], float)


def sequential():
    model = compiled(dense())
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return found(model, history)


class Calls(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.predict(X, verbose=0)
        self.model.evaluate(X, Y, verbose=0)


def shuffled():
    """Each order is drawn after the one before, and after seeds of layers."""
    results = {}
    held_out = (X[:9], Y[:9])
    for name, options in {
        "first": {"validation_data": held_out},
        "split": {"validation_split": 0.2},
        "steps": {"steps_per_epoch": 4},
        "calls": {"callbacks": [Calls()]},
        # Keras deals all rows into so many batches.
        "dealt": {
            "batch_size": None,
            "steps_per_epoch": 3,
            "validation_data": held_out,
            "validation_steps": 2,
        },
    }.items():
        model = compiled(dense())
        for epochs in (2, 1):
            history = model.fit(
                X, Y, epochs=epochs, verbose=0, **{"batch_size": 8} | options
            )
        model.evaluate(*held_out, verbose=0, steps=2)
        values = found(model, history)
        results |= {f"{name}_{key}": value for key, value in values.items()}
    return results


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


class OwnStep(keras.Model):
    """Takes its gradients by hand."""

    def __init__(self):
        super().__init__()
        self.inner = dense(
            keras.layers.BatchNormalization(), keras.layers.Dense(1)
        )

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def train_step(self, *args):
        x, y = args[-1]
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = keras.ops.mean(
                    keras.ops.square(y - self(x, training=True))
                )
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}
        if BACKEND == "torch":
            self.zero_grad()
            loss = keras.ops.mean(keras.ops.square(y - self(x, training=True)))
            loss.backward()
            weights = self.trainable_weights
            self.optimizer.apply([w.value.grad for w in weights], weights)
            return {"loss": loss}
        import jax

        trained, others, slots, metrics = args[0]

        def loss_of(trained):
            predicted, after = self.stateless_call(
                trained, others, x, training=True
            )
            return keras.ops.mean(keras.ops.square(y - predicted)), after

        of_step = jax.value_and_grad(loss_of, has_aux=True)
        (loss, others), gradients = of_step(trained)
        trained, slots = self.optimizer.stateless_apply(
            slots, gradients, trained
        )
        return {"loss": loss}, (trained, others, slots, metrics)


def own_steps():
    model = compiled(OwnStep(), metrics=None)
    model(X[:1])
    options = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False}
    history = model.fit(X, Y, **options)
    averaged = dense()
    optimizer = keras.optimizers.SGD(
        0.05, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2
    )
    averaged.compile(optimizer, "mse")
    averaged.fit(X, Y, **options)
    averages = averaged.get_weights()
    return found(
        model, history, **{f"average{n}": w for n, w in enumerate(averages)}
    )


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


def shuffled_batches():
    model = compiled(dense())
    history = model.fit(
        Batches(), epochs=2, verbose=0, validation_data=Batches()
    )
    model = compiled(dense())
    history = model.fit(Batches(), epochs=1, verbose=0)
    return found(model, history)


class OwnLogs(keras.Model):
    """Whose steps log what no metric knows."""

    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(1)

    def call(self, x):
        return self.last(x)

    def train_step(self, *args):
        return self.with_own_logs(super().train_step(*args), args[-1])

    def test_step(self, *args):
        return self.with_own_logs(super().test_step(*args), args[-1])

    def with_own_logs(self, result, data):
        x, y = data[:2]
        logs = {
            "mean": keras.ops.mean(y**2),
            "parts": keras.ops.mean(keras.ops.convert_to_tensor(x), axis=0)[0],
        }
        return (logs, result[1]) if BACKEND == "jax" else logs


def own_logs():
    model = compiled(OwnLogs())
    options = {"epochs": 2, "verbose": 0, "shuffle": False}
    first = model.fit(
        X, Y, batch_size=8, validation_data=(X, Y), **options
    ).history
    # Another last batch, with what was traced.
    found_before = {f"before.{name}": first[name] for name in first}
    history = model.fit(Batches(), steps_per_epoch=3, **options)
    results = model.evaluate(X, Y, batch_size=50, verbose=0)
    return found(model, history, results=results, **found_before)


def scoped():
    model = compiled(dense())
    if "HVD_RANK" not in os.environ:
        history = model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
        return found(model, history)
    keras.distribution.set_distribution(None)
    with keras.distribution.DataParallel().scope():
        history = model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    # What `hvdrun --distribute` had set.
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    return found(model, history)


def own_shares():
    """Whose ranks bring their own rows."""
    model, size = compiled(dense()), 1
    x, y = X[:48], Y[:48]
    if "HVD_RANK" in os.environ:
        whole = keras.distribution.DataParallel()
        mine = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(mine)
        size = mine.num_processes
        of_rank = [
            rows.reshape(4, size, 12 // size, -1)[:, mine.data_shard_id]
            for rows in (x, y)
        ]
        x, y = (rows.reshape(48 // size, -1) for rows in of_rank)
    history = model.fit(
        x, y, batch_size=12 // size, epochs=2, verbose=0, shuffle=False
    )
    if "HVD_RANK" in os.environ:
        keras.distribution.set_distribution(whole)
    return found(model, history)


class Typed(keras.Model):
    """Whose steps compute with numbers of one dtype."""

    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(1, autocast=False)
        self.autocast = False

    def call(self, x):
        return self.last(x)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, **kw
    ):
        assert keras.backend.standardize_dtype(y.dtype) == "float32"
        return keras.ops.mean((y - y_pred) ** 2)


def shuffled_loader():
    import torch

    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model = compiled(dense())
    model.fit(loader, epochs=2, verbose=0, validation_data=loader)
    model = compiled(dense())
    return found(model, model.fit(X, Y, epochs=2, verbose=0))


def of_float64():
    model, x, y = compiled(Typed()), X.astype("float64"), Y.astype("float64")
    history = model.fit(
        x, y, validation_data=(x, y), batch_size=8, verbose=0, shuffle=False
    )
    return found(model, history, predicted=model.predict(x, verbose=0))


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


class OfBatches(keras.callbacks.Callback):
    """Reads the logs of batches, and trains by them."""

    def __init__(self):
        super().__init__()
        self.losses, self.of_tests, self.outputs = [], [], []

    def on_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])
        self.model.optimizer.learning_rate = 0.01 * min(logs["mae"], 2.0)

    def on_test_batch_end(self, batch, logs=None):
        self.of_tests.append(logs["mae"])

    def on_predict_batch_end(self, batch, logs=None):
        self.outputs.append(float(np.sum(logs["outputs"])))


def of_batches():
    model, seen, errors = compiled(dense()), OfBatches(), []
    on_end = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: errors.append(logs["mae"])
    )
    with tempfile.TemporaryDirectory() as folder:
        folder = os.environ.get("SHARED", folder)
        path = os.path.join(folder, "of_batches-{loss:.4f}.weights.h5")
        keep = keras.callbacks.ModelCheckpoint(
            path, save_weights_only=True, save_freq=3
        )
        history = model.fit(
            X,
            Y,
            batch_size=8,
            epochs=2,
            verbose=0,
            shuffle=False,
            validation_split=0.2,
            callbacks=[seen, on_end],
        )
        model.fit(X, Y, verbose=0, shuffle=False, callbacks=[keep])
        model.predict(X, batch_size=10, callbacks=[seen], verbose=0)
        names = [n for n in os.listdir(folder) if n.startswith("of_batches")]
    return found(
        model,
        history,
        losses=seen.losses,
        of_tests=seen.of_tests,
        outputs=seen.outputs,
        errors=errors,
        names=[
            int(name[11:].partition(".w")[0].replace(".", ""))
            for name in sorted(names)
        ],
    )


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
        files = [n for n in os.listdir(folder) if not n.startswith("of_")]
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
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return found(model, history)


def generated():
    def batches():
        while True:
            for first in range(0, 53, 8):
                yield X[first : first + 8], Y[first : first + 8]

    model = compiled(dense())
    history = model.fit(batches(), steps_per_epoch=5, epochs=2, verbose=0)
    if keras.backend.backend() != "tensorflow":  # Keras loses batches there
        train, held_out = batches(), batches()
        for _ in range(2):
            history = model.fit(
                train, steps_per_epoch=3, epochs=2, verbose=0,
                validation_data=held_out, validation_steps=4,
            )  # fmt: skip
    return found(model, history)


def dataset():
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    data = rows.shuffle(53, seed=1).batch(8).prefetch(1)
    held_out = rows.batch(5)
    model = compiled(dense())
    history = model.fit(data, epochs=2, validation_data=held_out, verbose=0)
    shuffled = model.predict(data, verbose=0)
    model.fit(data, epochs=2, verbose=0)
    predicted = model.predict(held_out.take(3), verbose=0)
    return found(model, history, predicted=predicted, shuffled=shuffled)


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
        own_steps,
        py_dataset,
        shuffled,
        shuffled_batches,
        evaluated,
        predicted,
        of_batches,
        saved,
        in_a_loop,
        own_logs,
        scoped,
        own_shares,
        of_float64,
        generated,
    )
}
if BACKEND == "tensorflow":
    for program in (two_optimizers, dataset):
        PROGRAMS[program.__name__] = program
if BACKEND == "torch":
    PROGRAMS.update(loader=loader, shuffled_loader=shuffled_loader)
# Our share of a PyDataset is not one, for which Keras names a tensor more.
ALIKE_NAMED = [*PROGRAMS][: [*PROGRAMS].index("py_dataset")]
# Keras alone draws others. The first one draws from what hvdrun has seeded.
ALL = {"drawn": drawn, **PROGRAMS}


def main() -> None:
    path, *names = sys.argv[1:]
    results = {}
    for name in names or (ALL if "HVD_RANK" in os.environ else PROGRAMS):
        if name != "drawn":
            keras.utils.set_random_seed(1)
        before = counts_of_names()
        for key, value in ALL[name]().items():
            results[f"{name}.{key}"] = np.asarray(value, np.float64)
        if name in ALIKE_NAMED and not names:
            results[f"{name}.names"] = counts_of_names() - before
    if os.environ.get("HVD_RANK", "0") == "0":
        with pathlib.Path(path).open("wb") as file:
            np.savez(file, **results)


if __name__ == "__main__":
    main()
