"""TensorFlow optimizes no function of ours in tf.data, from the first share."""

from __future__ import annotations

import jobs

_PROGRAM = """
import numpy as np, tensorflow as tf
from tensorflow.python.data.ops.structured_function import (
    StructuredFunctionWrapper,
)
import hvd_keras as hvd

traced = []
trace = StructuredFunctionWrapper.__init__

def noting(self, func, *args, **kw):
    trace(self, func, *args, **kw)
    mark = self.function.function_def.attr["experimental_ints_on_device"]
    traced.append((func.__module__.partition(".")[0], mark.b))

def show(name):
    print(name, [mark for package, mark in traced if package == "hvd_keras"])
    traced.clear()

StructuredFunctionWrapper.__init__ = noting
hvd.init()
x, y = np.zeros((16, 4), np.float32), np.arange(16)
rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4, seed=1)
hvd.shard(rows, batch_size=2)  # the first one of this process
show("rows")
hvd.shard(rows.batch(4), batch_size=2, batched=True)
show("batches")
share = hvd.shard((x, y), batch_size=2)
show("arrays")
share.map(lambda x, y, *weights: (x + 1, y))
print("user", traced[-1])
"""


def test_no_function_of_ours_is_optimized() -> None:
    outcome = jobs.run_python(2, _PROGRAM)
    assert outcome.status == 0, outcome.stderr
    for name, num_functions in (("rows", 5), ("batches", 5), ("arrays", 2)):
        assert f"[0] {name} {[True] * num_functions}" in outcome.stdout
    assert "[0] user ('__main__', False)" in outcome.stdout
