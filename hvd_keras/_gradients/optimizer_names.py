"""Names of optimizers that are the same on all ranks, whatever ranks did."""

from __future__ import annotations

import collections
import re

import numpy as np

from hvd_keras import _native
from hvd_keras.process_set import ProcessSet


def label_of(optimizer_name: str) -> str:
    """Returns an optimizer's name without the numbers that Keras puts to it.

    Keras counts the optimizers that the process has made: "sgd", "sgd_1".
    """
    return re.sub(r"(_\d+)+$", "", optimizer_name)


# How many optimizers have a name, by epoch, process set and label.
_num_named: collections.Counter[tuple[int, int | None, str]] = (
    collections.Counter()
)


def agreed_name(label: str, epoch: int, process_set: ProcessSet) -> str:
    """Returns a name that no other optimizer of the epoch has.

    All ranks of the set call this together, when they first use an optimizer,
    and get the same name: the largest of the ranks' numbers counts. So a rank
    that has used more optimizers, or none, does not matter.

    Args:
        label: First part of the name.
        epoch: That of the job's membership. A program that was traced in
            another one has other names.
        process_set: The ranks that use the optimizer; this rank is one.
    """
    key = (epoch, process_set.process_set_id, label)
    number = _num_named[key] + 1
    if process_set.size() != 1:
        (numbers,) = _native.core().allgather(
            "DistributedOptimizer/name",
            [np.array([number])],
            process_set.process_set_id or 0,
        )
        number = int(numbers.max())
    _num_named[key] = number
    name = label if number == 1 else f"{label}#{number}"
    return name if epoch <= 1 else f"{name}@{epoch}"
