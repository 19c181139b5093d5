"""Metrics are those of all ranks also in a script that only evaluates.

Python looks for `evaluate` before it makes the callbacks in its arguments: what
wraps it must be there by then, also if Keras was imported late.
"""

from __future__ import annotations

import jobs
import pytest
from selection import thorough_except

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


_STARTS = {
    "Keras first": "import keras\nimport hvd_keras as hvd\nhvd.init()\n",
    "Keras last": "import hvd_keras as hvd\nhvd.init()\nimport keras\n",
}


@pytest.mark.parametrize("start", _STARTS.values(), ids=_STARTS)
@pytest.mark.parametrize(
    "backend", thorough_except(["tensorflow", "jax", "torch"], "tensorflow")
)
def test_the_first_evaluation_has_the_metrics_of_all_ranks(
    backend: str, start: str
) -> None:
    job = _run(start, backend)
    assert job.status == 0, job.stderr
    assert job.lines(0)[-1].startswith("loss ")
    assert job.lines(0)[-1] == job.lines(1)[-1]
