"""Tests of local updates on each backend: files, and what is refused."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
from local_updates import (
    BATCH,
    Own,
    Seen,
    are_equal,
    compiled,
    data,
    model,
    needs_peers,
    of_peers,
)

import hvd_keras as hvd
from hvd_keras.exceptions import InvalidArgumentError, MismatchError

# ---- Files ----


@of_peers
@pytest.mark.parametrize("kind", ["hvd", "keras"])
def test_a_checkpoint_holds_equal_weights(kind: str, tmp_path: Any) -> None:
    module = hvd.callbacks if kind == "hvd" else keras.callbacks
    path = pathlib.Path(hvd.broadcast_object(str(tmp_path)))
    save = module.ModelCheckpoint(path / "at_{batch}.keras", save_freq=2)
    made = compiled(5, keras.optimizers.Adam(0.01))
    seen = Seen()
    made.fit(Own(workers=0), shuffle=False, verbose=0, callbacks=[save, seen])
    # It saves after 2, 4 and 6 steps; all meet after 5, too.
    assert seen.steps == [step in (2, 4, 5, 6) for step in range(1, 8)]
    hvd.barrier()
    assert len(list(path.glob("*.keras"))) == 3
    loaded = keras.saving.load_model(path / "at_4.keras")
    assert are_equal(loaded.get_weights())


@needs_peers
def test_a_save_between_meetings_says_what_to_do(tmp_path: Any) -> None:
    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.save(tmp_path / "model.keras")

    made = compiled(5)
    with pytest.raises(RuntimeError, match=r"meet\(\)"):
        made.fit(Own(workers=0), verbose=0, callbacks=[Save()])


@needs_peers
def test_a_callback_may_let_ranks_meet(tmp_path: Any) -> None:
    updates = hvd.LocalUpdates(5, within="rank")

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                updates.meet()
                if hvd.rank() == 0:
                    self.model.save(tmp_path / "model.keras")
                values = [
                    keras.ops.convert_to_numpy(v.value)
                    for v in self.model.optimizer.variables
                ]
                assert are_equal([*self.model.get_weights(), *values])

    made = model()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(0.01), local_updates=updates
    )
    made.compile(optimizer, "mse")
    made.fit(Own(workers=0), verbose=0, callbacks=[Save()])
    assert (tmp_path / "model.keras").exists() == (hvd.rank() == 0)


class Stop(keras.callbacks.Callback):
    """Interrupts a `fit` in a step."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self._num_left = num_steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._num_left -= 1
        if not self._num_left:
            raise InterruptedError


def train_on(
    folder: pathlib.Path, num_steps: int, save_freq: int, outer: bool
) -> list[np.ndarray]:
    """Trains from the backup on; returns weights and slots."""
    optimizer: Any = "average"
    if outer:
        optimizer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    made = compiled(
        3, keras.optimizers.Adam(0.01), outer=optimizer, has_moments=True
    )
    dealt = hvd.shard(data(), batch_size=BATCH // hvd.size(), shuffle=True)
    backup = hvd.callbacks.BackupAndRestore(folder, save_freq=save_freq)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    try:
        made.fit(
            dealt,
            epochs=2,
            verbose=0,
            callbacks=[broadcast, Stop(num_steps), backup],
        )
    except InterruptedError:
        hvd.barrier()
    return [
        np.array(keras.ops.convert_to_numpy(v.value))
        for v in [*made.weights, *made.optimizer.variables]
    ]


@of_peers
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize(
    ("save_freq", "stop"),
    [
        (4, 5),
        pytest.param(2, 5, marks=pytest.mark.thorough),
        pytest.param(5, 12, marks=pytest.mark.thorough),
    ],
)
def test_training_resumes_to_the_same_bits(
    save_freq: int, stop: int, outer: bool, tmp_path: Any
) -> None:
    folder = pathlib.Path(hvd.broadcast_object(str(tmp_path)))
    whole = train_on(folder / "whole", -1, save_freq, outer)
    train_on(folder / "parts", stop, save_freq, outer)
    resumed = train_on(folder / "parts", -1, save_freq, outer)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert ours.tobytes() == theirs.tobytes()


# ---- What is refused ----


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"every": 0}, ValueError),
        ({"every": 2.0}, ValueError),
        ({"every": 2, "within": "rack"}, ValueError),
        ({"every": 2, "outer": "sgd"}, TypeError),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match="Received"):
        hvd.LocalUpdates(**arguments)


@pytest.mark.parametrize("options", [{"op": hvd.Sum}, {"local_updates": 5}])
def test_options_that_exclude_each_other_are_refused(
    options: dict[str, Any],
) -> None:
    options = {"local_updates": hvd.LocalUpdates(5), **options}
    with pytest.raises((ValueError, TypeError), match="local_updates"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)


def test_a_step_outside_of_fit_is_refused() -> None:
    made = compiled(5)
    x, y = data()
    with pytest.raises(ValueError, match="train by `fit`"):
        made.train_on_batch(x, y)


@needs_peers
def test_ranks_must_agree() -> None:
    made = compiled(5 + hvd.rank())
    with pytest.raises(MismatchError, match="local_updates"):
        made.fit(Own(workers=0), verbose=0)


@needs_peers
def test_a_set_without_this_rank_is_refused() -> None:
    made = compiled(5, within=hvd.ProcessSet([0]))
    with pytest.raises(InvalidArgumentError, match="on rank 1"):
        made.fit(Own(workers=0), verbose=0)


@needs_peers
def test_a_saver_on_one_rank_is_refused(tmp_path: Any) -> None:
    save = keras.callbacks.ModelCheckpoint(
        tmp_path / "model.keras", save_freq=2
    )
    made = compiled(5)
    with pytest.raises(InvalidArgumentError, match="all ranks must have"):
        made.fit(
            Own(workers=0),
            verbose=0,
            callbacks=[save] if hvd.rank() == 0 else [],
        )


@needs_peers
def test_weights_are_compared_when_they_have_met() -> None:
    made = compiled(3, keras.optimizers.Adam(0.01))
    check = hvd.callbacks.ConsistencyCheck(every=1)
    made.fit(Own(workers=0), epochs=2, verbose=0, callbacks=[check])
    with pytest.raises(ValueError, match="nonfinite='ignore'"):
        made.fit(
            Own(workers=0),
            verbose=0,
            callbacks=[hvd.callbacks.ConsistencyCheck(nonfinite="skip")],
        )
