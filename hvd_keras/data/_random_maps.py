"""Gives each rank its own numbers in functions behind `hvd.shard`.

A random op of tf.data has a seed from the time when its function is traced. A
layer, or `keras.random`, draws by a variable.

| Private name of TensorFlow | Used to |
|---|---|
| `Dataset._inputs`, `_functions` | know what is behind a share |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from hvd_keras import objects
from hvd_keras._common.seeds import seed_of_rank
from hvd_keras._keras import random_streams
from hvd_keras.data.position import Handle, own_handle_of

# Of a variable with a seed and a count of uses; Keras gives it.
_SEED_NAME = "seed_generator_state"


def own_seeds(dataset: Any, function: Any) -> AbstractContextManager[None]:
    """Returns a context in which a function is traced by the rank's own seed.

    Args:
        dataset: What the function changes; seeds stay if it is not behind a
            share.
        function: Stands for the function.
    """
    handle = next(_handles_before(dataset), None)
    deal = None if handle is None else handle.upcoming().deal
    if deal is None or deal.size == 1:
        return contextlib.nullcontext()
    return random_streams.traced_for(deal.rank, function)


def move_seeds_apart(data: Any, rank: int) -> None:
    """Moves the seeds apart that the functions behind a share draw by."""
    if not isinstance(data, tf.data.Dataset) or not any(_handles_before(data)):
        return
    for variable in _seeds_before(data):
        if not hasattr(variable, "_hvd_is_apart"):
            variable._hvd_is_apart = True
            seed, count = map(int, variable.numpy())
            variable.assign([seed_of_rank(seed, rank), count])


def go_on_alike(data: tf.data.Dataset) -> None:
    """Lets what all ranks draw in front of a share go on as on rank 0.

    An iterator that was not read to its end has drawn ahead, by as much as
    there was time for.
    """
    variables = list(_seeds_before(data))
    if variables:
        values = [variable.numpy() for variable in variables]
        values = objects.broadcast_object(values, 0, name="fit/seeds")
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _seeds_before(data: Any) -> Iterator[tf.Variable]:
    for dataset in _all_before(data):
        for function in dataset._functions():
            for variable in function.function.graph.variables:
                if _SEED_NAME in variable.name:
                    yield variable


def _all_before(dataset: Any) -> Iterator[Any]:
    """Yields a dataset and what it is made of, up to shares."""
    if isinstance(dataset, tf.data.Dataset) and not own_handle_of(dataset):
        yield dataset
        for each in dataset._inputs():
            yield from _all_before(each)


def _handles_before(dataset: Any) -> Iterator[Handle]:
    if isinstance(dataset, tf.data.Dataset):
        handle = own_handle_of(dataset)
        if handle is not None:
            yield handle
        else:
            for each in dataset._inputs():
                yield from _handles_before(each)
