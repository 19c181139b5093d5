"""Says for each pixel of a scene which digit it belongs to.

    hvdrun -np 2 python examples/segmentation.py

Such batches are small, 4 scenes here on each of 2 ranks: too few for the
statistics of batch normalization. `SyncBatchNormalization` takes those of all
ranks, so training is the same with any number of ranks.
"""

from __future__ import annotations

from typing import Any

import digit_data
import job
import keras
import numpy as np
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=5, batch_size=8)

SIDE = 24  # pixels of a scene
NUM_SCENES = 800  # to train with
NOTHING = 10  # class of a pixel without a digit


def make_scenes(
    digits: digit_data.Images, num_scenes: int, seed: int
) -> digit_data.Images:
    """Returns scenes of 4 digits each, and a class for each pixel."""
    rng = np.random.default_rng(seed)
    scenes = np.zeros((num_scenes, SIDE, SIDE, 1), np.float32)
    classes = np.full((num_scenes, SIDE, SIDE), NOTHING, np.int32)
    for scene, classes_of_scene in zip(scenes, classes, strict=True):
        for corner in np.ndindex(2, 2):
            which = rng.integers(len(digits[0]))
            row, column = np.array(corner) * 12 + rng.integers(0, 5, 2)
            place = np.s_[row : row + 8, column : column + 8]
            scene[place] = digits[0][which]
            has_ink = digits[0][which][..., 0] > 0.25
            classes_of_scene[place][has_ink] = digits[1][which]
    scenes += rng.normal(0, 0.05, scenes.shape)
    return scenes, classes


def make_model() -> keras.Model:
    layers = keras.layers

    def block(x: Any, filters: int) -> Any:
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        return layers.ReLU()(hvd.SyncBatchNormalization(momentum=0.9)(x))

    scene = keras.Input((SIDE, SIDE, 1))
    fine = block(block(scene, 16), 16)
    coarse = block(layers.MaxPooling2D()(fine), 32)
    coarse = block(layers.MaxPooling2D()(coarse), 32)
    x = layers.UpSampling2D(4, interpolation="bilinear")(coarse)
    x = block(layers.Concatenate()([fine, x]), 16)
    return keras.Model(scene, layers.Conv2D(NOTHING + 1, 1)(x))


def main(_: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    train, test = digit_data.load("digits")
    model = make_model()
    # The rate falls to 0: small batches would scatter the result otherwise.
    num_steps = FLAGS.epochs * NUM_SCENES // FLAGS.batch_size
    rate = keras.optimizers.schedules.CosineDecay(5e-3, num_steps)
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.MeanIoU(
                NOTHING + 1, sparse_y_pred=False, name="mean_iou"
            )
        ],
    )
    average = hvd.callbacks.MetricAverageCallback()
    model.fit(
        hvd.shard(
            make_scenes(train, NUM_SCENES, seed=0),
            batch_size=job.batch_size_of_rank(),
            policy="drop",
            shuffle=True,
        ),
        epochs=FLAGS.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), average],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    hvd.assert_equal_on_all_ranks(model)  # moving statistics too
    results = model.evaluate(
        hvd.shard(make_scenes(test, 100, seed=1), batch_size=20),
        verbose=0,
        callbacks=[average],
        return_dict=True,
    )
    job.say(f"test mean IoU {results['mean_iou']:.4f}")


if __name__ == "__main__":
    app.run(main)
