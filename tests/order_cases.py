"""Data that ranks read in unequal orders, and tests for every backend."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras._common import log

NUM_ROWS = 96

needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
thorough = pytest.mark.thorough
ways = pytest.mark.parametrize(
    ("when", "what", "workers"),
    [
        ("init", "numbers", 1),
        ("end", "numbers", 1),
        ("end", "names", 1),
        pytest.param("init", "rows", 1, marks=thorough),
        pytest.param("end", "rows", 2, marks=thorough),
    ],
)


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


ORDER = np.arange(NUM_ROWS)  # of `Elsewhere`


class Elsewhere(ShufflesItself):
    """Keeps or draws its order where no attribute shows it.

    Args:
        seed: None: it differs by rank.
        where: "global", "class", "closure", "callback" (a list that others
            shuffle), "lazy" (when batch 0 is read) or "draw" (in each batch).
        num_batches: Of an epoch.
        has_targets: Whether batches have them.
    """

    order = np.arange(NUM_ROWS)

    def __init__(
        self,
        seed: Any,
        where: str,
        num_batches: int = 12,
        *,
        has_targets: bool = True,
    ) -> None:
        super().__init__(seed, "never", "numbers")
        ORDER.sort()
        type(self).order.sort()
        self.where, self.has_targets = where, has_targets
        self.num, generator = num_batches, self.generator
        if where == "closure":
            order = np.arange(NUM_ROWS)
            generator.shuffle(order)
            self.numbers_of = lambda index: order[index * 8 :][:8]

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Any:
        if self.where == "lazy" and not index:
            self.generator.shuffle(self.numbers)
        if self.where == "draw":
            numbers = self.generator.choice(NUM_ROWS, 8)
        elif self.where == "closure":
            numbers = self.numbers_of(index)
        else:
            order = {"global": ORDER, "class": self.order}
            numbers = order.get(self.where, self.numbers)[index * 8 :][:8]
        x = self.x[numbers]
        x = x + np.random.default_rng().normal(0, 1e-3, x.shape)  # augmented
        return (x, self.y[numbers]) if self.has_targets else x

    def on_epoch_end(self) -> None:
        order = {"global": ORDER, "class": self.order}.get(self.where)
        if order is not None:
            self.generator.shuffle(order)


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


@needs_peers
@ways
def test_unequal_shuffles_of_a_py_dataset_are_told(
    when: str, what: str, workers: int
) -> None:
    data = ShufflesItself(None, when, what, workers=workers)
    for _ in range(3):  # a caught error does not let the next `fit` pass
        with pytest.raises(hvd.MismatchError) as raised:
            weights_after_fit(hvd.shard(data))
    text = str(raised.value)
    name = {"numbers": "numbers", "names": "names", "rows": "x"}[what]
    assert f"`{name}` of `data` begins with" in text
    assert "on rank 0; " in text
    assert "np.random.default_rng(1)" in text


@ways
def test_equal_shuffles_of_a_py_dataset_pass(
    when: str, what: str, workers: int
) -> None:
    data = ShufflesItself(1, when, what, workers=workers)
    weights = weights_after_fit(hvd.shard(data))
    assert np.isfinite(weights).all()


def test_a_look_at_the_data_changes_nothing() -> None:
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


def test_a_new_process_goes_on_with_the_orders() -> None:
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


@needs_peers
def test_validation_is_compared() -> None:
    data, held_out = hvd.shard(rows(), batch_size=4), ShufflesItself
    equal = hvd.shard(held_out(1, "end", "numbers"))
    weights_after_fit(data, validation_data=equal)
    unequal = hvd.shard(held_out(None, "end", "numbers"))
    with pytest.raises(hvd.MismatchError, match="`numbers` of `data`"):
        weights_after_fit(data, validation_data=unequal)
    # One rank alone may validate.
    alone = hvd.shard(rows(), batch_size=4, process_set=hvd.global_process_set)
    weights_after_fit(data, validation_data=alone if hvd.rank() else None)


def test_fit_does_not_shuffle_batches() -> None:
    """Keras would shuffle the batches by `random`, which differs by rank."""

    def weights(**options: bool) -> np.ndarray:
        data = ShufflesItself(1, "init", "numbers", workers=2)
        return weights_after_fit(hvd.shard(data), **options)

    np.testing.assert_array_equal(weights(), weights(shuffle=False))


@needs_peers
@pytest.mark.parametrize(
    "where", ["global", "class", "closure", "lazy", "draw"]
)
def test_orders_outside_of_attributes_are_told(where: str) -> None:
    size = hvd.size()
    num = 2 * size + 1 if where == "draw" else 6 * size
    with pytest.raises(hvd.MismatchError) as raised:
        weights_after_fit(hvd.shard(Elsewhere(None, where, min(num, 12))))
    text = str(raised.value)
    name = {"global": "ORDER", "class": "order", "lazy": "numbers"}.get(where)
    assert "on rank 0; " in text
    if where == "draw":
        assert f"in `data[{2 * size}]` in epoch 1, targets" in text
    else:
        assert f"`{name or 'numbers_of.order'}` of `data` begins" in text
    assert "hvd.shard" in text


@pytest.mark.parametrize("where", ["global", "class", "closure", "draw"])
def test_equal_orders_outside_of_attributes_pass(where: str) -> None:
    data = Elsewhere(1, where, 2 * hvd.size() + 1)
    if where == "draw":  # of the number of the batch alone
        draw = Elsewhere.__getitem__

        class Drawing(Elsewhere):
            def __getitem__(self, index: int) -> Any:
                self.generator = np.random.default_rng(index)
                return draw(self, index)

        data = Drawing(1, where, 2 * hvd.size() + 1)
    if where == "lazy":
        return  # it is unequal, whatever the seed
    assert np.isfinite(weights_after_fit(hvd.shard(data))).all()


def test_caches_of_batches_are_no_orders() -> None:
    """A rank may visit batches in an order of its own."""

    class Caching(Elsewhere):
        def __getitem__(self, index: int) -> Any:
            self.seen = [*getattr(self, "seen", []), index]
            return super().__getitem__(index)

    data = Caching(1, "none", 12)
    assert np.isfinite(weights_after_fit(hvd.shard(data))).all()


@needs_peers
def test_equal_draws_of_rows_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lines.append)
    data = Elsewhere(1, "draw", 4 * hvd.size())
    weights_after_fit(hvd.shard(data))
    told = [line for line in lines if "train on the same rows" in line]
    assert len(told) == (hvd.rank() == 0)
    lines.clear()
    weights_after_fit(hvd.shard(Elsewhere(None, "draw", 4 * hvd.size())))
    weights_after_fit(hvd.shard(Elsewhere(1, "global")))
    assert not any("train on the same rows" in line for line in lines)


class Held(keras.utils.PyDataset):
    """Batches of 4 of the rows that it is given, by names."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names, self.noise = names, np.random.default_rng().normal(size=2)

    def __len__(self) -> int:
        return len(self.names) // 4

    def __getitem__(self, index: int) -> Any:
        names = self.names[4 * index : 4 * index + 4]
        x = np.array([[float(name), 1.0] for name in names], np.float32)
        return x, x[:, :1]


@needs_peers
def test_a_py_dataset_of_own_rows_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lines.append)
    names = [str(i) for i in range(16 * hvd.size())]
    hvd.shard(Held(names))
    hvd.shard(Held(sorted(names, key=lambda name: hash((name, hvd.rank())))))
    assert lines == []
    hvd.shard(Held(names[hvd.rank() :: hvd.size()]))
    assert len(lines) == (hvd.rank() == 0)
    assert all("Received: `data.names` of a PyDataset" in one for one in lines)


@needs_peers
def test_evaluate_alone_is_compared() -> None:
    trained = model()
    average = hvd.callbacks.MetricAverageCallback()

    def evaluate(data: Any) -> None:
        trained.evaluate(hvd.shard(data), verbose=0, callbacks=[average])

    evaluate(Elsewhere(1, "closure"))
    with pytest.raises(hvd.MismatchError, match=r"`numbers_of.order` of"):
        evaluate(Elsewhere(None, "closure"))
    with pytest.raises(hvd.MismatchError, match="targets that begin"):
        evaluate(Elsewhere(None, "draw", 2 * hvd.size() + 1))
    evaluate(ShufflesItself(1, "init", "numbers"))


def test_epochs_of_few_steps_go_on_with_the_same_order() -> None:
    num_rows, num_steps = 16, 4
    y = np.sqrt(2.0 ** np.arange(num_rows)).astype(np.float32)[:, None]
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    batch_size = num_rows // num_steps // hvd.size()
    data = hvd.shard((y, y), batch_size=batch_size, shuffle=True, seed=1)
    losses = model.fit(
        data,
        epochs=3 * num_steps,
        steps_per_epoch=1,
        verbose=0,
        callbacks=[hvd.callbacks.MetricAverageCallback()],
    ).history["loss"]
    passes = np.reshape(losses, (3, num_steps))
    # Each pass has each row once, and an order of its own.
    np.testing.assert_allclose(passes.mean(axis=1), np.mean(y**2), rtol=1e-5)
    assert len(np.unique(passes.round(), axis=0)) == 3
