"""Elastic training on Ray as programs for Horovod do it; a rank dies once.

python elastic.py elastic_executor|executor|discovery
"""

import os
import pathlib
import signal
import sys
import tempfile

import horovod.tensorflow as hvd
import ray
import tensorflow as tf
from horovod.ray import ElasticRayExecutor, RayExecutor, RayHostDiscovery

ray.init(num_cpus=4, include_dashboard=False)
folder = pathlib.Path(tempfile.mkdtemp())


def training_fn():
    hvd.init()
    weight = tf.Variable(4.0)
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.02))

    @hvd.elastic.run
    def train(state):
        while state.batch < 40 or hvd.size() < 2:
            with tf.GradientTape() as tape:
                loss = weight * weight
            gradient = tape.gradient(loss, weight)
            optimizer.apply_gradients([(gradient, weight)])
            died = folder / "died"
            if state.batch == 10 and hvd.rank() == 1 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            state.batch += 1
            state.commit()

    state = hvd.elastic.TensorFlowState(variables=[weight], batch=0)
    state.register_reset_callbacks([lambda: (folder / "reset").touch()])
    train(state)
    return hvd.rank(), hvd.size(), float(weight)


class OurDiscovery(RayHostDiscovery):
    def find_available_hosts_and_slots(self):
        found = super().find_available_hosts_and_slots()
        assert list(found.values()) == [4], found
        return dict.fromkeys(found, 2)


if sys.argv[1] == "executor":
    settings = RayExecutor.create_settings(timeout_s=120)
    executor = RayExecutor(
        settings, min_workers=1, max_workers=2, reset_limit=3
    )
    executor.start()
    results = executor.run(training_fn)
else:
    settings = ElasticRayExecutor.create_settings(min_num_proc=1, verbose=True)
    if sys.argv[1] == "discovery":
        settings.discovery = OurDiscovery(cpus_per_slot=1)
    else:
        settings.max_num_proc = 2
    executor = ElasticRayExecutor(
        settings,
        use_gpu=False,
        cpus_per_slot=1,
        env_vars={"FLAG": "set"},
        override_discovery=sys.argv[1] != "discovery",
    )
    executor.start()
    results = executor.run(training_fn, callbacks=[print])
executor.shutdown()
assert [one[:2] for one in results] == [(0, 2), (1, 2)], results
assert results[0][2] == results[1][2] < 1.0, results
assert (folder / "died").exists()
assert (folder / "reset").exists()
print("ran on", len(results), "ranks")
