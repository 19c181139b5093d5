"""Learns to write docstrings: a language model with a `train_step` of its own.

    hvdrun -np 2 python examples/language_model.py

The model predicts the next word of a text. Texts have unequal lengths, and
what fills them up is left out: the step takes the mean over the words of all
ranks.
"""

from __future__ import annotations

import math
from typing import Any

import job
import keras
import library_data
import tensorflow as tf
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=5, batch_size=64)

NUM_WORDS, VOCABULARY_SIZE, WIDTH = 24, 1000, 64


class Writer(keras.Model):
    """An embedding, a GRU, and a guess of the next word."""

    def __init__(self) -> None:
        super().__init__()
        layers = keras.layers
        self.words = layers.Embedding(VOCABULARY_SIZE, WIDTH)
        self.reader = layers.GRU(WIDTH, return_sequences=True)
        self.guess = layers.Dense(VOCABULARY_SIZE)
        self.mean_loss = keras.metrics.Mean("word_loss")

    def call(self, words: Any) -> Any:
        return self.guess(self.reader(self.words(words)))

    def loss_of(self, texts: Any, outputs: Any) -> Any:
        """Returns the loss of each word, and which are words."""
        wanted = texts[:, 1:]
        entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(
            wanted, outputs
        )
        return entropies, wanted > 0

    def train_step(self, texts: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            entropies, is_word = self.loss_of(texts, self(texts[:, :-1]))
            loss = hvd.global_mean(entropies, mask=is_word)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.mean_loss.update_state(entropies, is_word)
        return {"word_loss": self.mean_loss.result()}


def main(_argv: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    (train, _), (test, _) = library_data.texts(NUM_WORDS, VOCABULARY_SIZE)
    model = Writer()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(3e-3)))
    model.fit(
        hvd.shard(train, batch_size=job.batch_size_of_rank(), shuffle=True),
        epochs=FLAGS.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    entropies, is_word = model.loss_of(test, model(test[:, :-1]))
    loss = float(tf.reduce_mean(entropies[is_word]))
    job.say(
        f"test loss {loss:.3f}: as unsure as among {math.exp(loss):.0f} of "
        f"{VOCABULARY_SIZE} words"
    )


if __name__ == "__main__":
    app.run(main)
