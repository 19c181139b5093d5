"""Orders of numbered rows, any part of which can be told at once.

A shuffled order takes no memory: a row's number is computed from its place, by
a Feistel network, as Grain and MosaicML's tools do it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_keras.data._orders import mixed

Array = np.ndarray[Any, Any]

SHUFFLES = (None, "global", "blocks")
_PART = 4096  # rows that are told at once
_NUM_ROUNDS = 8


class Order:
    """The rows of each pass over numbered rows.

    Args:
        begins: Rows with which blocks begin; then the number of all rows.
        shuffle: One of `SHUFFLES`.
        seed: Decides on the orders, together with the number of the pass.
        window: Blocks that are mixed with each other, for "blocks".
    """

    def __init__(
        self, begins: Array, shuffle: str | None, seed: int, window: int
    ) -> None:
        self._begins, self._shuffle = begins, shuffle
        self._seed, self._window = seed, window
        self.num_rows = int(begins[-1])
        count, size = self.num_rows, _PART
        if shuffle == "blocks":
            count, size = len(begins) - 1, window
        self.num_parts = -(-count // size)

    def part(self, number: Array, index: int) -> Array:
        """Returns the rows of a part of a pass, in order.

        Args:
            number: That of the pass.
            index: That of the part.
        """
        key = [self._seed, *map(int, number)]
        if self._shuffle == "blocks":
            return self._window_of(key, index)
        places = np.arange(
            index * _PART, min((index + 1) * _PART, self.num_rows)
        )
        if self._shuffle is None:
            return places
        return permuted(places, self.num_rows, key)

    def _window_of(self, key: list[int], index: int) -> Array:
        count = len(self._begins) - 1
        begin = index * self._window
        places = np.arange(begin, min(begin + self._window, count))
        blocks = permuted(places, count, key)
        rows = np.concatenate(
            [
                np.arange(self._begins[block], self._begins[block + 1])
                for block in blocks
            ]
        )
        return np.random.default_rng([*key, index]).permutation(rows)


def permuted(places: Array, count: int, key: list[int]) -> Array:
    """Returns what stands at some places of a random order of `range(count)`.

    Args:
        places: The places.
        count: The length of the order.
        key: Numbers that decide on the order.
    """
    keys = np.random.SeedSequence(key).generate_state(_NUM_ROUNDS, np.uint64)
    num_bits = max(int(count - 1).bit_length(), 2)
    low_bits = num_bits // 2
    low_mask = np.uint64((1 << low_bits) - 1)
    high_mask = np.uint64((1 << (num_bits - low_bits)) - 1)

    def mixed(values: Array) -> Array:
        low, high = values & low_mask, values >> np.uint64(low_bits)
        for number, each in enumerate(keys):
            if number % 2:
                low = (low + _random_bits(high, each)) & low_mask
            else:
                high = (high + _random_bits(low, each)) & high_mask
        return (high << np.uint64(low_bits)) | low

    values = mixed(places.astype(np.uint64))
    outside = np.flatnonzero(values >= count)
    while len(outside):  # fewer than half of them each time
        values[outside] = mixed(values[outside])
        outside = outside[values[outside] >= count]
    return values.astype(np.int64)


def _random_bits(values: Array, key: np.uint64) -> Array:
    return mixed(values + key) >> np.uint64(32)
