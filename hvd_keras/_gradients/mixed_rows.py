"""Tells of losses that are no means over the rows of a batch.

A contrastive loss multiplies all rows by all rows. On N ranks it sees those of
the rank alone, and is not the mean over rows that one process would have. No
number shows that; but the product of rows by rows has a shape of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras

from hvd_keras import _backends, basics
from hvd_keras._keras import advice, losses, steps


@contextlib.contextmanager
def watching(step: steps.Step) -> Iterator[None]:
    """Looks for products of rows in a step that runs or is traced."""
    if (
        not step.training
        or basics.size() == 1
        or basics.rank() != 0
        or step.call.is_watched
    ):
        yield
        return
    method = steps.own_method_of(step.model, training=True)
    names = losses.losses_of_whole_batches(step.model)
    if names and method is None:
        advice.tell_of_losses_of_whole_batches(step.model, names)
    step.call.is_watched = True
    found: list[str] = []
    data = keras.tree.flatten((step.x, step.y))
    with _backends.current().products_of_rows(data, found):
        yield
    if step.call.tries_steps and method is not None:
        step.call.doubts.append(functools.partial(tell, step.model, found))
    else:
        tell(step.model, found)


def tell(model: Any, products: list[str]) -> None:
    """Tells of the first of the products, once a model."""
    if products and basics.size() > 1 and basics.rank() == 0:
        method = steps.own_method_of(model, training=True)
        where = method or f"the step of {type(model).__name__}"
        advice.tell_of_mixed_rows(model, f"{where}, in {products[0]}")
