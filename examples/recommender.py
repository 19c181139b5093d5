"""Recommends modules to source files, with embeddings and sparse gradients.

    hvdrun -np 2 python examples/recommender.py

Files of Keras, NumPy and scikit-learn are the users, what they import are the
items. One import of each file is held out. A step touches a few rows of the
embeddings, so the gradients are slices, and ranks send those rows alone.
"""

from __future__ import annotations

import job
import keras
import library_data
import numpy as np
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=7, batch_size=256)

WIDTH = 16
NEGATIVES = 8  # modules that a file does not import, for each that it does


def make_model(num_files: int, num_modules: int) -> keras.Model:
    layers = keras.layers
    file = keras.Input((), dtype="int32")
    module = keras.Input((), dtype="int32")
    file_vector = layers.Embedding(num_files, WIDTH)(file)
    module_vector = layers.Embedding(num_modules, WIDTH)(module)
    liked = layers.Embedding(num_modules, 1, name="popularity")(module)
    match = layers.Dot(axes=1)([file_vector, module_vector])
    return keras.Model([file, module], match + liked)


def hold_out(
    pairs: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs without one of each file, and these."""
    shuffled = rng.permutation(pairs)
    _, first = np.unique(shuffled[:, 0], return_index=True)
    return np.delete(shuffled, first, axis=0), shuffled[first]


def hits(scores: np.ndarray, wanted: np.ndarray) -> int:
    """Returns for how many files the wanted module is among the best 10."""
    own = np.take_along_axis(scores, wanted[:, None], axis=1)
    return int(np.sum(np.sum(scores > own, axis=1) < 10))


def main(_: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)  # the same on all ranks
    pairs, num_files, names = library_data.imports()
    train, test = hold_out(pairs, rng)
    files = np.repeat(train[:, 0], 1 + NEGATIVES)
    modules = rng.integers(len(names), size=len(files), dtype=np.int32)
    modules[:: 1 + NEGATIVES] = train[:, 1]
    known = np.zeros((num_files, len(names)), bool)
    known[train[:, 0], train[:, 1]] = True
    labels = known[files, modules].astype(np.float32)

    model = make_model(num_files, len(names))
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(1e-2)),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    model.fit(
        hvd.shard(
            ((files, modules), labels),
            batch_size=job.batch_size_of_rank(),
            shuffle=True,
        ),
        epochs=FLAGS.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    counts = hvd.stats()
    if hvd.size() > 1:
        sent = counts["num_bytes"] / counts["num_steps"]
        job.say(
            f"a rank gave {sent / 1e3:.1f} kB in a step; the whole embeddings "
            f"have {4 * model.count_params() / 1e3:.1f} kB"
        )

    # Each rank ranks all modules for its share of the files.
    own = test[hvd.rank() :: hvd.size()]
    all_modules = np.arange(len(names), dtype=np.int32)
    scores = np.array(
        [
            model([np.full_like(all_modules, file), all_modules])[:, 0]
            for file in own[:, 0]
        ]
    )
    popular = np.tile(known.sum(axis=0), (len(own), 1)).astype(np.float32)
    for one in (scores, popular):
        one[known[own[:, 0]]] = -np.inf  # not again what it imports already
    found = [hits(one, own[:, 1]) for one in (scores, popular)]
    total = hvd.allreduce(np.array([*found, len(own)]), hvd.Sum).numpy()
    rate, rate_of_popular = total[:2] / total[2]
    job.say(
        f"among the first 10 of {len(names)} modules: {rate:.3f} of the held "
        f"out imports; {rate_of_popular:.3f} by popularity alone"
    )


if __name__ == "__main__":
    app.run(main)
