"""Functions run on ranks that are tasks of Spark."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import hvd_keras as hvd
import hvd_keras.spark

pytestmark = pytest.mark.usefixtures("spark")


def _train(folder: str, dies: bool = False) -> dict[str, Any]:
    import digit_data
    import keras

    import hvd_keras as hvd

    hvd.init()
    keras.utils.set_random_seed(1)
    train, test = digit_data.load("digits")
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(3e-3)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    average = hvd.callbacks.MetricAverageCallback()
    epochs: list[int] = []

    def begin(epoch: int, _: object) -> None:
        epochs.append(epoch)
        mark = Path(folder) / "died"
        if dies and epoch == 6 and hvd.rank() == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    model.fit(
        hvd.shard(train, batch_size=32, shuffle=True, seed=1),
        epochs=12,
        callbacks=[
            hvd.callbacks.BackupAndRestore(f"{folder}/backup"),
            average,
            keras.callbacks.LambdaCallback(on_epoch_begin=begin),
        ],
        verbose=0,
    )
    found = model.evaluate(
        hvd.shard(test, batch_size=64),
        callbacks=[average],
        verbose=0,
        return_dict=True,
    )
    return {"rank": hvd.rank(), "epochs": epochs, **found}


def test_two_ranks_learn_the_digits(tmp_path: Path) -> None:
    found = hvd_keras.spark.run(_train, (str(tmp_path),), num_proc=2)
    assert [one["rank"] for one in found] == [0, 1]
    assert found[0]["accuracy"] >= 0.97
    assert found[0]["accuracy"] == found[1]["accuracy"]


def test_training_goes_on_after_a_killed_task(tmp_path: Path) -> None:
    found = hvd_keras.spark.run(
        _train, (str(tmp_path), True), num_proc=2, retries=1
    )
    assert (tmp_path / "died").exists()
    assert found[1]["epochs"] == [6, 7, 8, 9, 10, 11]
    assert found[0]["accuracy"] >= 0.97


def test_an_exception_comes_with_its_rank() -> None:
    def fail() -> None:
        import hvd_keras as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ZeroDivisionError("nothing left to divide")

    with pytest.raises(hvd.RankError, match="rank 1: ZeroDiv") as caught:
        hvd_keras.spark.run(fail, num_proc=2)
    assert "in fail" in caught.value.traceback
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_environment_is_as_before_in_the_next_job() -> None:
    def name() -> str | None:
        return os.environ.get("OUR_NAME")

    env = {"OUR_NAME": "here"}
    assert hvd_keras.spark.run(name, num_proc=2, env=env) == ["here"] * 2
    assert hvd_keras.spark.run(name, num_proc=2) == [None] * 2
