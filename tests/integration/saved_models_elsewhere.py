"""Loads models where hvd_keras cannot be imported, and goes on with them.

`python -I -S FILE PACKAGES FOLDER`: PACKAGES has what can be imported, FOLDER
what saved_models_rank.py has written.
"""

from __future__ import annotations

import importlib.util
import pathlib
import pickle
import sys

sys.path.append(sys.argv[1])

import keras
import numpy as np


def values_of(variables: list) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(each) for each in variables]


def main(folder: pathlib.Path) -> None:
    assert importlib.util.find_spec("hvd_keras") is None
    expected = pickle.loads((folder / "expected.pickle").read_bytes())
    for name, (x, predicted, state, rate) in expected.items():
        model = keras.models.load_model(folder / name)
        found = model.predict(x, verbose=0)
        np.testing.assert_allclose(found, predicted, 1e-5, 1e-6, err_msg=name)
        same = keras.models.clone_model(model)
        same.load_weights((folder / name).with_suffix(".weights.h5"))
        for ours, theirs in zip(
            same.get_weights(), model.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
        optimizer = model.optimizer
        for ours, theirs in zip(
            values_of(optimizer.variables), state, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
        if name != "both.keras":  # of which the schedule alone is left
            now = keras.ops.convert_to_numpy(optimizer.learning_rate)
            np.testing.assert_allclose(now, rate, 1e-6, err_msg=name)
        before = int(values_of([optimizer.iterations])[0])
        model.fit(x, x[:, :2, 0], batch_size=8, verbose=0)
        assert int(values_of([optimizer.iterations])[0]) == before + 4, name
        print("loaded", name)
    assert not any(each.startswith("hvd_keras") for each in sys.modules)


main(pathlib.Path(sys.argv[2]))
