"""`RayExecutor` as programs for Horovod use it."""

import os

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import ray
from horovod.ray import RayExecutor

ray.init(num_cpus=4, include_dashboard=False)
settings = RayExecutor.create_settings(timeout_s=60, ssh_identity_file="key")
executor = RayExecutor(settings, num_workers=2, use_gpu=False)


class Trainer:
    def __init__(self, rate, *, rows):
        hvd.init()
        keras.utils.set_random_seed(hvd.rank())
        x = np.random.default_rng(hvd.rank()).normal(size=(rows, 3))
        self.data = x, x @ np.array([[1.0], [2.0], [3.0]])
        self.model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1)]
        )
        self.model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse"
        )

    def train(self):
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        fit = self.model.fit(
            *self.data, epochs=8, verbose=0, callbacks=callbacks
        )
        return fit.history["loss"], self.model.get_weights()[0].ravel().tolist()


executor.start(
    executable_cls=Trainer,
    executable_args=[0.1],
    executable_kwargs={"rows": 64},
    extra_env_vars={"FLAG": "set"},
)
results = executor.execute(lambda worker: worker.train())
for losses, weights in results:
    assert losses[-1] < 0.1 * losses[0], losses
    np.testing.assert_allclose(weights, results[0][1], rtol=1e-6)
assert executor.execute_single(lambda worker: len(worker.data[0])) == 64


def place(factor, plus=0):
    import horovod.tensorflow as hvd

    return (
        factor * hvd.rank() + plus,
        os.environ["HOROVOD_RANK"],
        os.environ["FLAG"],
    )


found = executor.run(place, args=[10], kwargs={"plus": 1})
assert found == [(1, "0", "set"), (11, "1", "set")], found
assert ray.get(executor.run_remote(place, args=[2])) == [
    (0, "0", "set"),
    (2, "1", "set"),
]
executor.shutdown()
print("ran on", len(results), "ranks")
