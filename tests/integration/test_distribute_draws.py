"""What a script draws, in its data and between its calls of `fit`."""

from __future__ import annotations

import pathlib

import jobs

# An iterator that is not read to its end has drawn ahead when the next begins.
AUGMENTED = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
x = np.random.rand(40, 8, 8, 3).astype("float32")
y = (x[..., :1] > 0.5).astype("float32")
flips = [keras.layers.RandomFlip("horizontal", seed=7) for _ in range(2)]
data = (
    tf.data.Dataset.from_tensor_slices((x, y))
    .shuffle(100)
    .batch(8)
    .repeat()
    .map(lambda *pair: tuple(flip(part) for flip, part in zip(flips, pair)))
    .prefetch(tf.data.AUTOTUNE)
)
model = keras.Sequential([keras.layers.Conv2D(1, 3, padding="same")])
model.compile("sgd", "mse")
for _ in range(3):
    model.fit(data, epochs=2, steps_per_epoch=3, verbose=0)
# Weights of pixels, after those of rows that a share adds.
weighted = data.map(lambda x, y: (x, y, tf.ones_like(y)))
model.fit(weighted, steps_per_epoch=3, verbose=0)
print("done", flush=True)
"""


def test_ranks_go_on_with_the_same_augmentation() -> None:
    job = jobs.run_python(2, AUGMENTED, "--distribute")
    assert job.status == 0, job.stderr[-3000:]
    assert "done" in job.stdout


# What `fit` draws for its orders shifts what comes afterwards.
BETWEEN = """
import keras, numpy as np, random, sys
keras.utils.set_random_seed(1)
x = np.linspace(0, 1, 24, dtype="float32").reshape(12, 2)
def trained():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0)
    return float(np.sum(model.get_weights()[0]))
print("drew", trained(), random.random(), np.random.rand(), trained())
"""


def test_what_follows_a_fit_is_drawn_as_by_keras_alone() -> None:
    alone, *_ = jobs.run_python(1, BETWEEN).lines(0)
    shared = jobs.run_python(2, BETWEEN, "--distribute")
    assert shared.status == 0, shared.stderr[-3000:]
    ours = shared.stdout.split("drew")[1].split()
    wanted = alone.split("drew")[1].split()
    for got, want in zip(ours, wanted, strict=True):
        assert abs(float(got) - float(want)) < 1e-5


# A look at data that are shuffled anew changes the order of what follows.
LOOK = """
import keras, numpy as np, pathlib, tensorflow as tf
keras.utils.set_random_seed(1)
def read(path):
    row = tf.strings.to_number(tf.io.read_file(path))
    return row[None] / 20, row[None]
paths = tf.data.Dataset.list_files({files!r}, shuffle=False)
data = paths.shuffle(20, reshuffle_each_iteration=False).skip(3)
data = data.map(read, num_parallel_calls=tf.data.AUTOTUNE)
data = data.cache().shuffle(20).batch(4)
next(iter(data))
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, epochs=2, verbose=0)
next(iter(data))
model.fit(data, epochs=2, verbose=0)
print("sum", float(np.sum(model.get_weights()[0])))
"""


def test_data_that_the_script_has_looked_at_are_in_its_order(
    tmp_path: pathlib.Path,
) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_text(str(number))
    code = LOOK.format(files=f"{tmp_path}/*")
    alone, *_ = jobs.run_python(1, code).lines(0)
    shared = jobs.run_python(2, code, "--distribute")
    assert shared.status == 0, shared.stderr[-3000:]
    got, want = (
        float(text.split("sum")[1].split()[0])
        for text in (shared.stdout, alone)
    )
    assert abs(got - want) < 1e-5


# Both data of a `fit` draw: orders of one `shuffle`, numbers of one generator.
SEVERAL = """
import gc, os
import keras, numpy as np, tensorflow as tf

class Flow(keras.utils.PyDataset):  # as of `ImageDataGenerator.flow`
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return x[8 * index : 8 * index + 8], y[8 * index : 8 * index + 8]
    def __iter__(self):
        return self
    def __next__(self):
        return self[0]

def drawn(draws):
    while True:
        rows = draws.normal(size=(8, 2)).astype("float32")
        yield rows, rows[:, :1]

def trained(data, **options):
    if os.environ.get("HVD_RANK") == "1":
        gc.collect()  # what is left of the data before
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    options = {"epochs": 3, "verbose": 0, **options}
    logs = model.fit(data, **options).history
    weights = model.get_weights()[0].ravel()
    print("got", *logs["loss"], *logs["val_loss"], *weights)

keras.utils.set_random_seed(2)
x = np.random.rand(24, 2).astype("float32")
y = x[:, :1]
rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24)
trained(rows.skip(8).batch(8), validation_data=rows.take(8).batch(8))
trained(rows.batch(8), validation_data=rows.take(8).batch(4))
trained(Flow(), validation_data=Flow())
trained(Flow(), validation_data=Flow(), initial_epoch=2, epochs=4)
np.random.seed(3)
draw = lambda *_: np.random.rand()
before = keras.callbacks.LambdaCallback(on_epoch_begin=draw)
held_out = dict(validation_data=drawn(np.random), validation_steps=1)
trained(x, y=y, shuffle=False, callbacks=[before], **held_out)
"""


def test_data_that_draw_from_one_generator_draw_in_turn() -> None:
    alone = "\n".join(jobs.run_python(1, SEVERAL).lines(0))
    shared = jobs.run_python(2, SEVERAL, "--distribute")
    assert shared.status == 0, shared.stderr[-3000:]
    got, want = (
        [float(word) for word in text.split() if word != "got"]
        for text in (shared.stdout, alone)
    )
    assert len(got) == len(want) > 30
    for ours, wanted in zip(got, want, strict=True):
        assert abs(ours - wanted) < 1e-5


# As of `ImageDataGenerator.flow`, of which Keras reads ahead: an epoch ends
# within a pass, while a thread still draws for the batches behind it.
AHEAD = """
import os, time
import keras, numpy as np

class Flow(keras.utils.PyDataset):
    def __init__(self, changes):
        super().__init__()
        self.changes, self.order = changes, None
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if self.order is None:
            self.on_epoch_end()
        rows = self.order[8 * index : 8 * index + 8]
        # How far ahead a rank reads differs.
        time.sleep(0.02 * np.random.default_rng(os.getpid() + index).random())
        if self.changes:
            np.random.rand()
        return x[rows], y[rows]
    def on_epoch_end(self):
        self.order = np.random.permutation(64)

keras.utils.set_random_seed(1)
x = np.random.rand(64, 2).astype("float32")
y = x[:, :1]
held_out = Flow(False)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
# What is drawn in the thread decides on what is drawn after it, by chance.
for word, changes in ("drew", False), ("got", True):
    train = Flow(changes)
    for _ in range(2):
        logs = model.fit(
            train, steps_per_epoch=3, epochs=5, verbose=0,
            validation_data=held_out, validation_steps=5,
        ).history
        print(word, *logs["loss"], *logs["val_loss"], flush=True)
model.fit(train, epochs=2, verbose=0, validation_data=held_out)
print("got", *model.get_weights()[0].ravel(), flush=True)
"""


def test_ranks_read_the_same_batches_ahead() -> None:
    alone, shared = (
        jobs.run_python(
            len(ranks), AHEAD, "--distribute", "--show-ranks", ",".join(ranks)
        )
        for ranks in ("0", "012")
    )

    def told(job: jobs.Outcome, word: str, rank: int = 0) -> list[float]:
        assert job.status == 0, job.stderr[-3000:]
        lines = [line.partition(word)[2] for line in job.lines(rank)]
        return [float(number) for number in " ".join(lines).split()]

    drawn = told(shared, "drew")
    assert len(drawn) == 20
    for got, want in zip(drawn, told(alone, "drew"), strict=True):
        assert abs(got - want) < 1e-4
    assert len(told(shared, "got")) == 22
    assert told(shared, "got") == told(shared, "got", 1)
    assert told(shared, "got") == told(shared, "got", 2)
