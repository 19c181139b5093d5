"""Metrics are those of all ranks also in a script that only evaluates.

Python looks for `evaluate` before it makes the callbacks in its arguments. They
may be the first that imports what wraps it.
"""

from __future__ import annotations

import jobs
import pytest

_EVALUATE = """
import numpy as np
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(loss="mse", metrics=["mae"])
x = np.ones((5, 4), "f") * (hvd.rank() + 1)
loss, _ = model.evaluate(
    x, x[:, :1], verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()]
)
print("loss", loss)
"""


def _run(start: str, backend: str) -> jobs.Outcome:
    return jobs.run_python(
        2, start + _EVALUATE, seconds=60, KERAS_BACKEND=backend
    )


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_first_evaluation_has_the_metrics_of_all_ranks(
    backend: str,
) -> None:
    start = "import keras\nimport hvd_keras as hvd\nhvd.init()\n"
    job = _run(start, backend)
    assert job.status == 0, job.stderr
    assert job.lines(0)[-1].startswith("loss ")
    assert job.lines(0)[-1] == job.lines(1)[-1]


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_call_that_began_before_is_refused(backend: str) -> None:
    start = "import hvd_keras as hvd\nhvd.init()\nimport keras\n"
    job = _run(start, backend)
    assert job.status == 1
    assert "import Keras before `hvd.init()`" in job.stderr
