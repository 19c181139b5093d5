"""Classifies texts by a small Transformer: which library a docstring is from.

    hvdrun -np 2 python examples/text_transformer.py

The texts have unequal lengths; masks leave out what fills them up.
"""

from __future__ import annotations

from typing import Any

import job
import keras
import library_data
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=3, batch_size=64)

NUM_WORDS, VOCABULARY_SIZE, WIDTH = 48, 4000, 32


@keras.saving.register_keras_serializable("examples")
class Positions(keras.layers.Layer):
    """Adds to each word what its place in the text means."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.supports_masking = True

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, words: Any) -> Any:
        return words + self.table


def make_model() -> keras.Model:
    layers = keras.layers
    tokens = keras.Input((NUM_WORDS,), dtype="int32")
    x = layers.Embedding(VOCABULARY_SIZE, WIDTH, mask_zero=True)(tokens)
    x = Positions()(x)
    x = layers.Dropout(0.1)(x)
    attended = layers.MultiHeadAttention(num_heads=2, key_dim=WIDTH // 2)(x, x)
    x = layers.LayerNormalization()(x + attended)
    wide = layers.Dense(2 * WIDTH, activation="gelu")(x)
    x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(wide))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, layers.Dense(len(library_data.LIBRARIES))(x))


def main(_: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    train, test = library_data.texts(NUM_WORDS, VOCABULARY_SIZE)
    model = make_model()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(2e-3)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    average = hvd.callbacks.MetricAverageCallback()
    model.fit(
        hvd.shard(train, batch_size=job.batch_size_of_rank(), shuffle=True),
        epochs=FLAGS.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), average],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    held_out = hvd.shard(test, batch_size=64)
    results = model.evaluate(
        held_out, verbose=0, callbacks=[average], return_dict=True
    )
    share = max((test[1] == label).mean() for label in range(3))
    job.say(
        f"test accuracy {results['accuracy']:.4f} on {len(test[0])} texts "
        f"(the most frequent library has a share of {share:.2f})"
    )


if __name__ == "__main__":
    app.run(main)
