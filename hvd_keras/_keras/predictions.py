"""Watches the steps of `Model.predict`, by public names alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras


@contextlib.contextmanager
def noting_rows(model: Any) -> Iterator[list[list[int]]]:
    """Yields a list that gets the rows of each output in each step.

    In this context the model predicts one batch in each step.
    """
    num_rows: list[list[int]] = []
    steps_per_execution = model.steps_per_execution
    if steps_per_execution != 1:
        model.steps_per_execution, model.predict_function = 1, None
    model.make_predict_function()
    function = model.predict_function

    def noting(*args: Any) -> Any:
        try:
            result = function(*args)
        except UnboundLocalError:
            num_rows.append([])  # it is not what Keras raises without data
            raise
        # On JAX the state of the model comes with the outputs.
        outputs = result[0] if keras.backend.backend() == "jax" else result
        flat = keras.tree.flatten(outputs)
        num_rows.append([int(output.shape[0]) for output in flat])
        return result

    model.predict_function = noting
    try:
        yield num_rows
    finally:
        model.predict_function = function
        if steps_per_execution != 1:
            model.steps_per_execution = steps_per_execution
            model.predict_function = None
