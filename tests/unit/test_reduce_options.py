"""Optimizers and tapes accept some arguments and refuse the others."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras._backends.options import VariableGroups
from hvd_keras._gradients.groups import group_indices


def wrap_optimizer(**options: Any) -> Any:
    return hvd.DistributedOptimizer(keras.optimizers.SGD(), **options)


def wrap_tape(**options: Any) -> Any:
    return hvd.DistributedGradientTape(tf.GradientTape(), **options)


VARIABLE = tf.Variable([1.0])


@pytest.mark.parametrize("wrap", [wrap_optimizer, wrap_tape])
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"op": hvd.Min}, ValueError, "`op`"),
        ({"op": True}, ValueError, "`op`"),
        ({"op": 7}, ValueError, "`op`"),
        ({"op": np.ones(2)}, ValueError, "`op`"),
        ({"gradient_predivide_factor": 0}, ValueError, "positive"),
        ({"gradient_predivide_factor": "2x"}, ValueError, "positive"),
        (
            {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
            ValueError,
            "Average",
        ),
        ({"groups": 0}, ValueError, "1 or more"),
        ({"groups": -1}, ValueError, "1 or more"),
        ({"groups": True}, ValueError, "number of groups"),
        ({"groups": 2.0}, ValueError, "number of groups"),
        ({"groups": [VARIABLE]}, ValueError, "list of lists"),
        ({"groups": [[3]]}, ValueError, "variables"),
        ({"groups": [[VARIABLE], [VARIABLE]]}, ValueError, "once"),
        ({"num_groups": -1}, ValueError, "num_groups"),
        ({"num_groups": 2, "groups": 2}, ValueError, "old name"),
        ({"compression": "fp16"}, TypeError, "Compressor"),
        ({"process_set": [0]}, TypeError, "ProcessSet"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
)
def test_impossible_options_are_refused(
    wrap: Any, options: dict[str, Any], error: type, words: str
) -> None:
    with pytest.raises(error, match=words):
        wrap(**options)


def test_local_layers_must_be_layers() -> None:
    optimizer = keras.optimizers.SGD()
    with pytest.raises(ValueError, match="local_layers"):
        hvd.PartialDistributedOptimizer(optimizer, local_layers=[VARIABLE])
    assert type(optimizer) is keras.optimizers.SGD


def test_other_options_for_the_same_optimizer_are_refused() -> None:
    optimizer = keras.optimizers.SGD()
    groups = [[VARIABLE]]
    hvd.DistributedOptimizer(optimizer, groups=groups)
    hvd.DistributedOptimizer(optimizer, groups=[[VARIABLE]])
    with pytest.raises(ValueError, match="once"):
        hvd.DistributedOptimizer(optimizer, groups=[[tf.Variable([1.0])]])


@pytest.mark.parametrize("num_groups", [1, 2, 3, 7, 100])
def test_a_number_of_groups_cuts_evenly(num_groups: int) -> None:
    layout = group_indices([None] * 7, num_groups)
    assert len(layout) == min(num_groups, 7)
    assert [i for group in layout for i in group] == [*range(6, -1, -1)]
    lengths = [len(group) for group in layout]
    assert max(lengths) - min(lengths) <= 1


def test_no_gradients_make_no_group() -> None:
    assert group_indices([], 3) == []


def test_listed_variables_go_together_and_others_alone() -> None:
    a, b, c, d = (tf.Variable([1.0]) for _ in range(4))
    groups = VariableGroups([[a, d], [b]])
    assert group_indices([a, b, c, d], groups) == [[3, 0], [2], [1]]
