"""Gives each rank its own numbers in functions behind `hvd.shard`.

A random op of tf.data has a seed from the time when its function is traced. A
layer, or `keras.random`, draws by a variable.

| Private name of TensorFlow | Used to |
|---|---|
| `StructuredFunctionWrapper.__init__` (wrapped) | trace by own seeds; `light` |
| `Dataset._inputs`, `_functions` | know what is behind a share |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from hvd_keras import objects
from hvd_keras._common.replacements import replace
from hvd_keras._common.seeds import seed_of_rank
from hvd_keras._keras import random_streams
from hvd_keras._keras.lookup import require
from hvd_keras.data._light import attributes_of
from hvd_keras.data.position import Handle, own_handle_of

# Of a variable with a seed and a count of uses; Keras gives it.
_SEED_NAME = "seed_generator_state"


def trace_apart() -> None:
    """Traces functions behind shares with the rank's own seed from now on.

    A second call does nothing.
    """
    from tensorflow.python.data.ops import structured_function

    owner = require(structured_function, "StructuredFunctionWrapper")
    replace(owner, "__init__", _tracing_apart)


def _tracing_apart(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(  # noqa: N807
        self: Any, func: Any, *args: Any, **kw: Any
    ) -> None:
        if attributes := attributes_of(func):
            kw["defun_kwargs"] = {
                **(kw.get("defun_kwargs") or {}),
                **attributes,
            }
        dataset = kw.get("dataset", args[1] if len(args) > 1 else None)
        handle = next(_handles_before(dataset), None)
        deal = None if handle is None else handle.upcoming().deal
        if deal is None or deal.size == 1:
            original(self, func, *args, **kw)
            return
        with random_streams.traced_for(deal.rank, self):
            original(self, func, *args, **kw)

    return __init__


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
