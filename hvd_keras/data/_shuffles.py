"""Tells what draws new orders in a tf.data pipeline, and when.

| Private name of TensorFlow | Used to |
|---|---|
| `_inputs`, class names, `_reshuffle_each_iteration`, `_count` | know stages |
| `_variant_tensor`, `_flat_structure` | rewrite them |
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras._common.dataset_kinds import kind_of


def has_rewritten_repeat(dataset: Any) -> bool:
    """Whether tf.data changes stages so that `shuffle` draws fewer orders.

    It makes one stage of `shuffle` and a `repeat` that ends, and drops
    `repeat(1)`.
    """
    chosen = dataset.options().experimental_optimization
    return False not in (
        chosen.apply_default_optimizations,
        chosen.shuffle_and_repeat_fusion,
        chosen.noop_elimination,
    ) and _has_rewritten_repeat(dataset)


def _has_rewritten_repeat(dataset: Any) -> bool:
    inputs = dataset._inputs()
    if kind_of(dataset) == "Repeat":
        count = tf.get_static_value(dataset._count)
        if kind_of(inputs[0]) == "Shuffle" and (count is None or count >= 0):
            return True
        if count == 1 and reshuffling(dataset):
            return True
    return any(map(_has_rewritten_repeat, inputs))


def is_endless(dataset: Any) -> bool:
    """Whether a dataset without an end is shuffled in other orders.

    tf.data draws the next order when it gets there, and stages may run ahead. A
    pass over such data is always broken off; so it depends on the time with
    which order the next one begins.
    """
    is_endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    return is_endless and bool(reshuffling(dataset))


def reshuffling(dataset: Any) -> list[Any]:
    """Returns the stages that shuffle in another order in each pass."""
    found = [each for one in dataset._inputs() for each in reshuffling(one)]
    if kind_of(dataset) == "Shuffle" and dataset._reshuffle_each_iteration:
        found.append(dataset)
    return list({id(each): each for each in found}.values())


def keeps_an_order(dataset: Any) -> bool:
    """Whether a `cache` keeps the first of several orders."""
    if kind_of(dataset) == "Cache" and reshuffling(dataset):
        return True
    return any(map(keeps_an_order, dataset._inputs()))


def is_made_of(dataset: Any, stages: list[Any]) -> bool:
    """Whether a dataset reads one of some stages."""
    if any(dataset is stage for stage in stages):
        return True
    below = [*dataset._inputs(), getattr(dataset, "_hvd_input", None)]
    return any(is_made_of(one, stages) for one in below if one is not None)


def rewritten(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns it as tf.data runs it at the top of a pipeline.

    Within `flat_map` it would not make one stage of `shuffle` and `repeat`, nor
    drop `repeat(1)`; so it would draw an order more in each pass.
    """
    variant = tf.raw_ops.OptimizeDatasetV2(
        input_dataset=dataset._variant_tensor,
        optimizations_enabled=["noop_elimination", "shuffle_and_repeat_fusion"],
        optimizations_disabled=[],
        optimizations_default=[],
        optimization_configs=[],
        **dataset._flat_structure,
    )
    made = tf.data.experimental.from_variant(variant, dataset.element_spec)
    # TensorFlow drops functions of a dataset that Python has dropped.
    made._hvd_input = dataset
    return made
