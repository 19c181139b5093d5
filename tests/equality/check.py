"""Asserts on every rank that a case equals one process."""

from __future__ import annotations

import numpy as np

import hvd_keras as hvd
from equality.cases import Case
from equality.difference import difference


def assert_equals_one_process(case: Case) -> None:
    found = case.ours()
    worst, of = difference(found, case.alone())
    assert worst <= 1e-5, of
    for other in hvd.allgather_object(found.weights):
        for mine, theirs in zip(found.weights, other, strict=True):
            assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()
