"""The lengths of elements are those of a dataset's elements."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf

from hvd_keras.data._lengths import Lengths, of_batches, of_rows


def lengths_in(dataset: Any) -> list[int]:
    return [int(tf.size(each)) for each in dataset]


def expanded(lengths: Lengths) -> list[int]:
    return [size for count, size in lengths.runs for _ in range(count)]


def test_stages_change_them_as_elements() -> None:
    numbers = random.Random(1)
    for _ in range(60):
        rows, size = numbers.randrange(1, 40), numbers.randrange(1, 9)
        drops = numbers.random() < 0.3
        data = tf.data.Dataset.range(rows).batch(size, drop_remainder=drops)
        found = of_batches(rows, size, drops_rest=drops)
        for _ in range(3):
            name = numbers.choice(["take", "skip", "repeat", "concatenate"])
            if name == "concatenate":
                data, found = data.concatenate(data), found.concatenate(found)
                continue
            count = numbers.randrange(1 if name == "repeat" else -1, 5)
            data = getattr(data, name)(count)
            made = getattr(found, name)(count)
            assert made is not None
            found = made
        assert expanded(found) == lengths_in(data)


def test_what_never_ends() -> None:
    endless = of_batches(10, 4, drops_rest=False).repeat(-1)
    assert endless.is_endless
    assert endless.take(3) is None
    assert of_rows(-1).is_endless
    of_equal = of_batches(12, 4, drops_rest=False).repeat(-1)
    assert of_equal.take(7) == Lengths(((7, 4),))
    assert of_equal.skip(7) == of_equal


def test_an_order_that_is_not_known() -> None:
    mixed = of_batches(10, 4, drops_rest=False).shuffled()
    assert mixed.take(2) is None
    assert mixed.take(3) == mixed
    assert mixed.num_rows == 10
    assert mixed.repeat(9).num_rows == 90
    equal = of_batches(12, 4, drops_rest=False).shuffled()
    assert equal.take(2) == Lengths(((2, 4),))


def test_many_runs_stay_few() -> None:
    many = of_batches(10, 4, drops_rest=False).repeat(1 << 20)
    assert len(many.runs) == 2
    assert many.num_rows == 10 << 20
