"""Names of optimizers that are the same on all ranks."""

from __future__ import annotations

import collections
import re
from typing import Any

from hvd_keras._job import membership
from hvd_keras._values.agreement import Check


def label_of(optimizer_name: str, base: type) -> str:
    """Returns an optimizer's name without the numbers that Keras appends.

    Keras names an optimizer after its class, and counts those of the process:
    "sgd", "sgd_1". A name that the user gave stays as it is.
    """
    label = re.sub(r"(_\d+)+$", "", optimizer_name)
    is_automatic = label.replace("_", "") == base.__name__.lower()
    return label if is_automatic else optimizer_name


# How many optimizers have a name, by generation, process set and label.
_num_named: collections.Counter[tuple[int, int | None, str]] = (
    collections.Counter()
)


def agreed_name(label: str, generation: int, set_id: Any) -> Check:
    """Returns a name that no other optimizer of the generation has.

    All ranks of the set do this together when they first use an optimizer. They
    all get the same name, because they take the largest of their numbers. So
    the name does not depend on how many optimizers a rank used before.

    Args:
        label: First part of the name.
        generation: The generation of the job. A program that was traced in
            another one uses other names.
        set_id: The process set of the ranks that use the optimizer.
    """
    key = (generation, set_id, label)
    numbers = yield _num_named[key] + 1
    _num_named[key] = number = max(numbers)
    name = label if number == 1 else f"{label}#{number}"
    return name + membership.name_suffix()
