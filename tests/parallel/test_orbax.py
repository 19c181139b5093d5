"""Keras's OrbaxCheckpoint on all ranks: one of them writes."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd


@pytest.fixture(autouse=True)
def needs_orbax() -> None:
    pytest.importorskip("orbax.checkpoint")
    if not hasattr(keras.callbacks, "OrbaxCheckpoint"):
        pytest.skip("this Keras has none")


@pytest.mark.thorough(4)
@pytest.mark.parametrize("save_on_background", [False, True])
def test_one_rank_writes(
    tmp_path_factory: Any, save_on_background: bool
) -> None:
    path = pathlib.Path(
        hvd.broadcast_object(str(tmp_path_factory.mktemp("orbax")))
    )
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    save = keras.callbacks.OrbaxCheckpoint(
        str(path), save_on_background=save_on_background, max_to_keep=2
    )
    saved_by = []
    checkpointer = save.checkpointer
    for name in ("save_checkpointables", "save_checkpointables_async"):
        original = getattr(checkpointer, name)

        def note(*args: Any, original: Any = original, **options: Any) -> Any:
            saved_by.append(hvd.rank())
            return original(*args, **options)

        setattr(checkpointer, name, note)
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=3,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), save],
    )
    hvd.barrier()
    assert set(saved_by) == ({0} if hvd.rank() == 0 else set())
    folders = sorted(p.name for p in path.iterdir() if p.name.isdigit())
    assert folders == ["1", "2"], folders
    loaded = keras.saving.load_model(str(path))
    for ours, theirs in zip(
        model.get_weights(), loaded.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
