"""One rank of a `fit` in which rank 1 dies; test_backend_faults.py runs it."""

from __future__ import annotations

import os
import signal
import sys

import keras
import numpy as np

import hvd_keras as hvd


class DieAtBatch(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if hvd.rank() == 1 and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    hvd.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    x = np.ones((64, 4), np.float32)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.1, 1),
        DieAtBatch(),
    ]
    data = hvd.shard((x, x[:, :1]), batch_size=4)
    try:
        model.fit(data, callbacks=callbacks, verbose=0)
    except hvd.PeerLostError as error:
        print("error:", error)
        print("steps:", int(model.optimizer.iterations.numpy()))
        print("finite:", np.isfinite(model.get_weights()[0]).all())
        print("tensorflow:", "tensorflow" in sys.modules)
        model.save_weights(sys.argv[1])


if __name__ == "__main__":
    main()
