"""Keras models train on Ray's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import digit_data
import pytest
import ray.data
import ray.train
import ray.tune
from digits_training import train, train_on_shard
from ray.tune.integration.ray_train import TuneReportCallback

from hvd_keras.ray import KerasTrainer


def _trainer(folder: Path, **config: Any) -> KerasTrainer:
    failures = ray.train.FailureConfig(max_failures=1)
    return KerasTrainer(
        train,
        train_loop_config={"folder": str(folder), **config},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(folder / "results"), failure_config=failures
        ),
    )


def test_two_workers_learn_the_digits(tmp_path: Path) -> None:
    result = _trainer(tmp_path).fit()
    assert result.metrics["val_accuracy"] >= 0.97
    assert result.metrics["epoch"] == 11
    assert len(list(tmp_path.glob("start.*"))) == 2


def test_training_goes_on_when_a_worker_was_killed(tmp_path: Path) -> None:
    result = _trainer(tmp_path, dies_at=6).fit()
    assert result.metrics["val_accuracy"] >= 0.97
    starts = sorted(float(p.read_text()) for p in tmp_path.glob("start.*"))
    died = float((tmp_path / "died").read_text())
    assert len(starts) == 4  # both workers, twice
    print(f"training again {starts[2] - died:.1f} s after SIGKILL")
    reported = result.metrics_dataframe["epoch"].tolist()
    assert reported[-6:] == [6, 7, 8, 9, 10, 11]


def test_workers_learn_from_shards_of_ray_data(tmp_path: Path) -> None:
    (images, labels), _ = digit_data.load("digits")
    rows = ray.data.from_items(
        [
            {"number": number, "image": image, "digit": int(label)}
            for number, (image, label) in enumerate(
                zip(images, labels, strict=True)
            )
        ]
    )
    result = KerasTrainer(
        train_on_shard,
        train_loop_config={"rate": 3e-3, "epochs": 12},
        datasets={"train": rows},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path / "results")),
    ).fit()
    assert result.metrics["val_accuracy"] >= 0.97
    # Ray gives both equally many rows, and leaves an odd one out.
    assert result.metrics["rows"] == len(images) - len(images) % 2
    assert result.metrics["distinct_rows"] == result.metrics["rows"]


def test_tune_tries_four_rates(tmp_path: Path) -> None:
    def trial(config: dict[str, float]) -> None:
        KerasTrainer(
            train,
            train_loop_config={"rate": config["rate"], "epochs": 3},
            scaling_config=ray.train.ScalingConfig(
                num_workers=2, resources_per_worker={"CPU": 1}
            ),
            run_config=ray.train.RunConfig(
                storage_path=str(tmp_path / "results"),
                callbacks=[TuneReportCallback()],
            ),
        ).fit()

    rates = [1e-5, 1e-4, 1e-3, 1e-2]
    tuner = ray.tune.Tuner(
        trial,
        param_space={"rate": ray.tune.grid_search(rates)},
        tune_config=ray.tune.TuneConfig(max_concurrent_trials=2),
        run_config=ray.tune.RunConfig(storage_path=str(tmp_path / "tune")),
    )
    results = tuner.fit()
    assert not results.errors
    assert len(results) == 4
    best = results.get_best_result("val_accuracy", "max")
    assert best.config["rate"] == pytest.approx(1e-2)
