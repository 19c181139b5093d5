"""What is reported for each output is what Keras alone reports."""

from __future__ import annotations

import json

import jobs
import numpy as np
import pytest

# Keras means the losses of outputs over the batches, not over their rows.
PROGRAM = """
import json, keras, numpy as np, tensorflow as tf
draw = np.random.default_rng(0).normal
x = draw(size=(101, 4)).astype("float32")
targets = {"a": x[:, :1] * np.linspace(1, 4, 101)[:, None], "b": x[:, 1:2] > 0}
inputs = keras.Input((4,))
layer, last = keras.layers.Dense, {"a": None, "b": "sigmoid"}
outputs = {n: layer(1, last[n], name=n)(inputs) for n in last}
model = keras.Model(inputs, outputs)
model.set_weights([np.full(w.shape, 0.1) for w in model.get_weights()])
losses = {"a": "mse", "b": "binary_crossentropy"}
model.compile("sgd", losses, metrics={"a": ["mae"]})
rows = tf.data.Dataset.from_tensor_slices((x, targets)).batch(32)
found = [
    model.fit(rows, epochs=2, verbose=0, validation_data=rows).history,
    model.fit(x, targets, batch_size=32, shuffle=False, verbose=0).history,
    model.evaluate(rows, verbose=0, return_dict=True),
    model.evaluate(x, targets, batch_size=32, verbose=0, return_dict=True),
]
print("found", json.dumps(found))
"""


def _values_of(found: str) -> list[float]:
    return [
        value
        for logs in json.loads(found)
        for name in sorted(logs)
        for value in np.ravel(logs[name])
    ]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_losses_of_outputs_are_those_of_one_process(num_ranks: int) -> None:
    alone = jobs.run_python(1, PROGRAM)
    shared = jobs.run_python(num_ranks, PROGRAM, "--distribute")
    assert shared.status == 0, shared.stderr[-3000:]
    ours, wanted = (
        _values_of(job.stdout.split("found")[1]) for job in (shared, alone)
    )
    np.testing.assert_allclose(ours, wanted, rtol=1e-5)
