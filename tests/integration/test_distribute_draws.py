"""What a script draws, in its data and between its calls of `fit`."""

from __future__ import annotations

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
