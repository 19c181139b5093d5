"""Tests of local updates, for each backend."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

FEATURES = 6
BATCH = 24  # rows of a global batch; 1, 2, 3 and 4 ranks take equal shares
NUM_BATCHES = 7
needs_peers = pytest.mark.ranks(2)
of_peers = pytest.mark.ranks(2, 4)


def data(num_rows: int = BATCH * NUM_BATCHES) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same rows on every rank."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(num_rows, FEATURES)).astype(np.float32)
    return x, np.sin(x.sum(axis=1, keepdims=True))


def model(*, has_moments: bool = False) -> keras.Model:
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(5, activation="tanh"),
        keras.layers.Dense(1),
    ]
    if has_moments:
        layers.insert(2, keras.layers.BatchNormalization())
    made = keras.Sequential(layers)
    generator = np.random.default_rng(3)
    made.set_weights(
        [generator.normal(size=w.shape) ** 2 for w in made.weights]
    )
    return made


def compiled(
    every: int,
    optimizer: Any = None,
    *,
    within: Any = "rank",
    outer: Any = "average",
    has_moments: bool = False,
    loss: Any = "mse",
    options: dict[str, Any] | None = None,
    **compile_options: Any,
) -> keras.Model:
    made = model(has_moments=has_moments)
    optimizer = hvd.DistributedOptimizer(
        optimizer or keras.optimizers.SGD(0.1),
        local_updates=hvd.LocalUpdates(every, within=within, outer=outer),
        **(options or {}),
    )
    made.compile(optimizer, loss, **compile_options)
    return made


def own_rows(
    x: np.ndarray, y: np.ndarray, rank: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the batches of a rank."""
    share = BATCH // hvd.size()
    begins = range(rank * share, len(x), BATCH)
    return [(x[b : b + share], y[b : b + share]) for b in begins]


class Own(keras.utils.PyDataset):
    """The batches of a rank, as Keras takes them."""

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return own_rows(*data(), hvd.rank())[index]


def weights_of(made: keras.Model) -> list[np.ndarray]:
    return [np.array(each) for each in made.get_weights()]


def are_equal(values: list[np.ndarray]) -> bool:
    """Whether the ranks have the same bits."""
    mine = [each.tobytes() for each in values]
    return all(mine == other for other in hvd.allgather_object(mine))


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def of_one_process(
    num_rows: int = BATCH * NUM_BATCHES, loss: Any = "mse", epochs: int = 1
) -> list[np.ndarray]:
    """Returns what plain Keras trains on whole batches."""
    alone = model()
    alone.compile(keras.optimizers.SGD(0.1), loss)
    x, y = data(num_rows)
    alone.fit(x, y, batch_size=BATCH, shuffle=False, epochs=epochs, verbose=0)
    return weights_of(alone)


class Seen(keras.callbacks.Callback):
    """Notes whether the weights are equal, at each event."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[bool] = []
        self.epochs: list[bool] = []
        self.tests: list[bool] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append(are_equal(self.model.get_weights()))

    def on_test_begin(self, logs: Any = None) -> None:
        self.tests.append(are_equal(self.model.get_weights()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(are_equal(self.model.get_weights()))


# ---- Every step: one process on the whole batch ----


@pytest.mark.parametrize("policy", ["drop", "pad", "split"])
@pytest.mark.parametrize("num_rows", [BATCH * NUM_BATCHES, BATCH * 3 + 5])
def test_meeting_at_each_step_equals_one_process(
    policy: str, num_rows: int
) -> None:
    made = compiled(1)
    dealt = hvd.shard(
        data(num_rows), batch_size=BATCH // hvd.size(), policy=policy
    )
    made.fit(dealt, epochs=2, verbose=0)
    num_used = num_rows // BATCH * BATCH if policy == "drop" else num_rows
    assert_close(weights_of(made), of_one_process(num_used, epochs=2))
    assert are_equal(weights_of(made))


def test_rows_nobody_dealt_alike_count_alike() -> None:
    x, y = data(BATCH * 2)
    ends = np.cumsum([0, *range(1, hvd.size() + 1)])
    ends = ends * BATCH // ends[-1]
    first, last = ends[hvd.rank()], ends[hvd.rank() + 1]
    mine = [
        (x[b + first : b + last], y[b + first : b + last]) for b in (0, BATCH)
    ]
    made = compiled(1)
    made.fit(
        np.concatenate([a for a, _ in mine]),
        np.concatenate([b for _, b in mine]),
        batch_size=int(last - first),
        shuffle=False,
        verbose=0,
    )
    assert_close(weights_of(made), of_one_process(BATCH * 2))


def test_sums_are_those_of_one_process() -> None:
    loss = keras.losses.MeanSquaredError(reduction="sum")
    made = compiled(1, keras.optimizers.SGD(0.001), loss=loss)
    made.fit(Own(workers=0), shuffle=False, verbose=0)
    alone = model()
    alone.compile(keras.optimizers.SGD(0.001), loss)
    alone.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0)
    assert_close(weights_of(made), weights_of(alone))


def test_accumulated_batches_are_one_update() -> None:
    made = compiled(1, options={"backward_passes_per_step": 2})
    x, y = data(BATCH * 4)
    dealt = hvd.shard((x, y), batch_size=BATCH // hvd.size())
    made.fit(dealt, verbose=0)
    alone = model()
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    alone.fit(x, y, batch_size=2 * BATCH, shuffle=False, verbose=0)
    assert_close(weights_of(made), weights_of(alone))


# ---- Several steps ----


def apart_and_met(
    every: int, groups: list[list[int]], epochs: int, passes: int = 1
) -> list[np.ndarray]:
    """Trains each group by plain Keras, and averages as it should be."""
    weights = weights_of(model())
    of_groups = [weights] * len(groups)
    slots: list[Any] = [None] * len(groups)
    for _ in range(epochs):
        for begin in range(0, NUM_BATCHES, every * passes):
            for number, ranks in enumerate(groups):
                alone = model()
                alone.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
                alone.optimizer.build(alone.trainable_variables)
                alone.set_weights(of_groups[number])
                if slots[number] is not None:
                    for slot, value in zip(
                        alone.optimizer.variables, slots[number], strict=True
                    ):
                        slot.assign(value)
                batches = [own_rows(*data(), rank) for rank in ranks]
                for step in range(begin, min(begin + every, NUM_BATCHES)):
                    parts = [of_rank[step] for of_rank in batches]
                    alone.train_on_batch(
                        np.concatenate([a for a, _ in parts]),
                        np.concatenate([b for _, b in parts]),
                    )
                of_groups[number] = weights_of(alone)
                slots[number] = [
                    np.array(keras.ops.convert_to_numpy(v))
                    for v in alone.optimizer.variables
                ]
            counts = [len(ranks) for ranks in groups]
            mean = [
                np.average(each, axis=0, weights=counts)
                for each in zip(*of_groups, strict=True)
            ]
            of_groups = [mean] * len(groups)
    return of_groups[0]


@pytest.mark.parametrize("every", [2, 5, 100])
def test_weights_are_the_mean_of_those_of_all_ranks(every: int) -> None:
    made = compiled(every, keras.optimizers.SGD(0.1, momentum=0.9))
    seen = Seen()
    made.fit(
        Own(workers=0), shuffle=False, epochs=2, verbose=0, callbacks=[seen]
    )
    groups = [[rank] for rank in range(hvd.size())]
    assert_close(weights_of(made), apart_and_met(every, groups, 2))
    if hvd.size() > 1:
        meets = [(step + 1) % every == 0 for step in range(NUM_BATCHES)]
        assert seen.steps == 2 * meets  # and the end of an epoch comes later
    assert seen.epochs == [True, True]


@of_peers
def test_ranks_of_a_set_are_one_in_each_step() -> None:
    half = (hvd.size() + 1) // 2
    groups = [list(range(half)), list(range(half, hvd.size()))]
    mine = hvd.ProcessSet(groups[hvd.rank() >= half])
    made = compiled(3, keras.optimizers.SGD(0.1, momentum=0.9), within=mine)
    made.fit(Own(workers=0), shuffle=False, epochs=2, verbose=0)
    assert_close(weights_of(made), apart_and_met(3, groups, 2))


def test_ranks_of_one_host_train_as_without(caplog: Any) -> None:
    caplog.set_level(logging.INFO, "hvd_keras")
    made = compiled(5, within="host")
    seen = Seen()
    made.fit(Own(workers=0), shuffle=False, verbose=0, callbacks=[seen])
    if hvd.cross_size() == 1:
        assert all(seen.steps)
        assert_close(weights_of(made), of_one_process())
        is_told = "all ranks are in one group" in caplog.text
        assert is_told == (hvd.rank() == 0 and hvd.size() > 1)


@of_peers
def test_ranks_meet_before_others_look(monkeypatch: Any) -> None:
    # Weights are compared after each epoch, whatever that costs.
    monkeypatch.setattr("hvd_keras.callbacks._weights._MOST", 1e9)
    made = compiled(4, keras.optimizers.Adam(0.01), has_moments=True)
    seen = Seen()
    made.fit(
        Own(workers=0),
        epochs=2,
        verbose=0,
        validation_data=data(),
        callbacks=[seen, hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    assert seen.tests == seen.epochs == [True, True]  # with moving statistics
    assert not all(seen.steps)
    hvd.assert_equal_on_all_ranks(made)


@needs_peers
def test_training_goes_on_in_another_fit() -> None:
    made = compiled(3, keras.optimizers.Adam(0.01))
    for _ in range(3):
        made.fit(Own(workers=0), shuffle=False, verbose=0)
    whole = compiled(3, keras.optimizers.Adam(0.01))
    whole.fit(Own(workers=0), shuffle=False, epochs=3, verbose=0)
    for ours, theirs in zip(weights_of(made), weights_of(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@needs_peers
def test_steps_of_one_execution_stay_together() -> None:
    if keras.backend.backend() == "torch":
        pytest.skip("torch has no `steps_per_execution`")
    made = compiled(3, steps_per_execution=2)
    seen = Seen()
    made.fit(Own(workers=0), shuffle=False, verbose=0, callbacks=[seen])
    assert seen.steps[:3] == [False, True, True]  # after 2, 4 and 6 steps
    assert seen.epochs == [True]


@needs_peers
def test_xla_compiles_steps_of_a_group() -> None:
    if keras.backend.backend() == "torch":
        pytest.skip("torch has no XLA here")
    results = []
    for jit_compile in (False, True):
        made = compiled(3, jit_compile=jit_compile)
        made.fit(Own(workers=0), shuffle=False, verbose=0)
        results.append(weights_of(made))
        assert are_equal(results[-1])
    assert_close(*results)


@needs_peers
def test_rows_of_tables_and_moments_of_all_ranks_go_with_it() -> None:
    made = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(7, 4),
            keras.layers.Flatten(),
            hvd.SyncBatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(0.01),
        compression=hvd.Compression.fp16,
        local_updates=hvd.LocalUpdates(2, within="rank"),
    )
    made.compile(optimizer, "mse")
    rows = np.random.default_rng(hvd.rank()).integers(0, 7, (20, 3))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    seen = Seen()
    made.fit(
        rows, rows.sum(axis=1), batch_size=4, verbose=0,
        callbacks=[callback, seen],
    )  # fmt: skip
    assert seen.steps == [False, True, False, True, False]
    assert seen.epochs == [True]


@needs_peers
@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": 0.1},
        {"global_clipnorm": 0.1},
        {"use_ema": True},
        {"use_ema": True, "ema_overwrite_frequency": 3},
        {"weight_decay": 0.1},
    ],
    ids=str,
)
def test_options_of_optimizers_leave_weights_equal(
    options: dict[str, Any],
) -> None:
    made = compiled(3, keras.optimizers.Adam(0.01, **options))
    made.fit(Own(workers=0), epochs=2, verbose=0)
    assert are_equal(weights_of(made))


@needs_peers
def test_a_host_skips_its_own_steps() -> None:
    """With loss scaling, one rank skips a step that others take."""
    inner = keras.optimizers.Adam(0.01)
    made = model()
    inner = hvd.DistributedOptimizer(
        inner, local_updates=hvd.LocalUpdates(2, within="rank")
    )
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    made.compile(scaled, "mse")
    x, y = own_rows(*data(), hvd.rank())[0]
    x, y = np.tile(x, (4, 1)), np.tile(y, (4, 1))
    if hvd.rank() == 1:
        x[0] = np.inf
    made.fit(x, y, batch_size=len(x) // 4, shuffle=False, verbose=0)
    assert all(np.isfinite(each).all() for each in weights_of(made))
    hvd.assert_equal_on_all_ranks(made)
    steps = int(keras.ops.convert_to_numpy(inner.iterations))
    assert hvd.allgather_object(steps) == [4] * hvd.size()


@needs_peers
def test_a_local_variable_stays_apart() -> None:
    made = compiled(2)
    made.optimizer.register_local_var(made.layers[0].bias)
    made.fit(Own(workers=0), verbose=0)
    biases, *others = made.layers[0].bias, *made.layers[1].weights
    assert not are_equal([keras.ops.convert_to_numpy(biases)])
    assert are_equal([keras.ops.convert_to_numpy(v) for v in others])


# ---- The outer optimizer ----


@needs_peers
def test_an_outer_optimizer_may_just_average() -> None:
    made = compiled(3, outer=keras.optimizers.SGD(1.0))
    made.fit(Own(workers=0), shuffle=False, epochs=2, verbose=0)
    plain = compiled(3)
    plain.fit(Own(workers=0), shuffle=False, epochs=2, verbose=0)
    assert_close(weights_of(made), weights_of(plain))
    assert are_equal(weights_of(made))


@of_peers
def test_an_outer_optimizer_goes_the_way_of_all_ranks(caplog: Any) -> None:
    caplog.set_level(logging.INFO, "hvd_keras")
    outer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    made = compiled(100, outer=outer)
    first = weights_of(made)
    made.fit(Own(workers=0), shuffle=False, verbose=0)
    mean = compiled(100)
    mean.fit(Own(workers=0), shuffle=False, verbose=0)
    expected = [
        # Nesterov's first step: the gradient, and the momentum once.
        before - 0.7 * 1.9 * (before - after)
        for before, after in zip(first, weights_of(mean), strict=True)
    ]
    assert_close(weights_of(made), expected)
    for words in ("training has 7 steps", "an epoch has 7 steps"):
        assert (words in caplog.text) == (hvd.rank() == 0)
