"""TensorFlow works with one inter-op thread, as on one core a rank."""

from __future__ import annotations

import jobs
import pytest


@pytest.mark.thorough
def test_functions_that_a_py_function_calls_need_no_second_thread() -> None:
    job = jobs.run_python(
        2,
        """
        import tensorflow as tf
        import hvd_keras as hvd

        @tf.function
        def reduce(x):
            return hvd.allreduce(x, hvd.Sum, name="x") + 0.0

        def load(x):
            rows = tf.data.Dataset.from_tensor_slices(reduce(x))
            rows = rows.map(lambda row: row + 1.0, num_parallel_calls=2)
            return tf.stack(list(rows.prefetch(1)))

        @tf.function
        def step(x):
            return tf.py_function(load, [x], tf.float32)

        hvd.init()
        hvd.barrier()
        print(step(tf.ones([2])).numpy())
        """,
        seconds=45,
        TF_NUM_INTEROP_THREADS="1",
    )
    assert job.lines(0) == ["[3. 3.]"], job.stderr
    assert job.lines(1) == ["[3. 3.]"], job.stderr
