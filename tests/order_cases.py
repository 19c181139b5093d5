"""Data that ranks read in unequal orders, for tests on every backend."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

NUM_ROWS = 96


def rows() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(NUM_ROWS, dtype=np.float32)[:, None] / NUM_ROWS
    return np.concatenate([numbers, numbers**2], 1), 3 * numbers


class ShufflesItself(keras.utils.PyDataset):
    """Shuffles itself as Keras's examples do.

    Args:
        seed: None: it differs by rank.
        when: "init" or "end": where it shuffles.
        what: "numbers", "names" or "rows": what it puts in another order.
    """

    def __init__(self, seed: Any, when: str, what: str, **options: Any) -> None:
        super().__init__(**options)
        seed = hvd.rank() if seed is None else seed
        self.generator = np.random.default_rng(seed)
        self.when = when
        self.x, self.y = rows()
        self.numbers = np.arange(NUM_ROWS)
        self.names = [f"picture {number}" for number in range(NUM_ROWS)]
        self.shuffled = {
            "numbers": self.numbers,
            "names": self.names,
            "rows": self.x,
        }[what]
        self.cache: dict[int, Any] = {}
        self.last = np.zeros(8, np.int64)  # of this rank
        if when == "init":
            self.shuffle()

    def shuffle(self) -> None:
        self.generator.shuffle(self.shuffled)

    def __len__(self) -> int:
        return NUM_ROWS // 8

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = self.numbers[index * 8 :][:8]
        self.last[:] = numbers
        self.cache[index] = self.x[numbers], self.y[numbers]
        return self.cache[index]

    def on_epoch_end(self) -> None:
        if self.when == "end":
            self.shuffle()


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    made.compile(optimizer, "mse")
    return made


def weights_after_fit(
    data: Any, epochs: int = 3, trained: Any = None, **options: Any
) -> np.ndarray:
    """Returns the weights of a model that `data` have trained, as a vector."""
    trained = trained or model()
    trained.fit(data, epochs=epochs, verbose=0, **options)
    return np.concatenate([np.ravel(w) for w in trained.get_weights()])


def check_unequal_shuffles_are_told(when: str, what: str, workers: int) -> None:
    data = ShufflesItself(None, when, what, workers=workers)
    for _ in range(2):  # a caught error does not let the next `fit` pass
        with pytest.raises(hvd.MismatchError) as raised:
            weights_after_fit(hvd.shard(data))
    text = str(raised.value)
    name = {"numbers": "numbers", "names": "names", "rows": "x"}[what]
    assert f"`{name}` of `data` begins with" in text
    assert "on rank 0; " in text
    assert "np.random.default_rng(1)" in text


def check_equal_shuffles_pass(when: str, what: str, workers: int) -> None:
    data = ShufflesItself(1, when, what, workers=workers)
    weights = weights_after_fit(hvd.shard(data))
    assert np.isfinite(weights).all()


def check_a_look_changes_nothing() -> None:
    """Rank 0 alone looks at its data, before `fit` and in it."""

    def share() -> Any:
        return hvd.shard(rows(), batch_size=4, shuffle=True)

    expected = weights_after_fit(share())
    looked_at = share()

    def look(*_: Any, **__: Any) -> None:
        if hvd.rank() == 0:
            next(iter(looked_at))

    look()
    looks = keras.callbacks.LambdaCallback(
        on_epoch_begin=look, on_train_batch_end=look, on_epoch_end=look
    )
    found = weights_after_fit(looked_at, callbacks=[looks])
    np.testing.assert_array_equal(found, expected)


def check_a_new_process_goes_on_with_the_orders() -> None:
    """`initial_epoch` of a new share gives the orders of these epochs."""

    def share() -> Any:
        return hvd.shard(rows(), batch_size=4, shuffle=True)

    expected = weights_after_fit(share(), 4)
    trained = model()
    weights_after_fit(share(), 2, trained)
    found = weights_after_fit(share(), 4, trained, initial_epoch=2)
    np.testing.assert_array_equal(found, expected)
    # Calls of `fit` on one share go on as well.
    trained, one = model(), share()
    weights_after_fit(one, 2, trained)
    next(iter(one))
    found = weights_after_fit(one, 2, trained)
    np.testing.assert_array_equal(found, expected)


def check_validation_is_compared() -> None:
    data, held_out = hvd.shard(rows(), batch_size=4), ShufflesItself
    equal = hvd.shard(held_out(1, "end", "numbers"))
    weights_after_fit(data, validation_data=equal)
    unequal = hvd.shard(held_out(None, "end", "numbers"))
    with pytest.raises(hvd.MismatchError, match="`numbers` of `data`"):
        weights_after_fit(data, validation_data=unequal)
    # One rank alone may validate.
    alone = hvd.shard(rows(), batch_size=4, process_set=hvd.global_process_set)
    weights_after_fit(data, validation_data=alone if hvd.rank() else None)


def check_fit_does_not_shuffle() -> None:
    """Keras would shuffle the batches by `random`, which differs by rank."""

    def weights(**options: bool) -> np.ndarray:
        data = ShufflesItself(1, "init", "numbers", workers=2)
        return weights_after_fit(hvd.shard(data), **options)

    np.testing.assert_array_equal(weights(), weights(shuffle=False))
