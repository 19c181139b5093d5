"""Losses, steps and optimizers of the user's train as on one process."""

from __future__ import annotations

import keras
import pytest
from equality import cases
from equality.check import assert_equals_one_process

NAMES = [
    name
    for name, case in cases.OWN.items()
    if keras.backend.backend() in case.backends
]
FEW = (
    "two_views",
    "own_step_few",
    "add_vector",
    "signed",
    "class_weight",
    "validation_rows",
    "steps_after_fit",
)


@pytest.mark.parametrize("name", [name for name in NAMES if name in FEW])
def test_training_equals_one_process(name: str) -> None:
    assert_equals_one_process(cases.OWN[name])
