"""A DataLoader of all rows, in an order of its own on each rank, is told."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    Subset,
    TensorDataset,
)

import hvd_keras as hvd
from hvd_keras._common import log

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")

X = torch.from_numpy(np.random.default_rng(0).normal(size=(32, 3))).float()
Y = X.sum(1, keepdim=True)


class Rows(Dataset):
    def __init__(self) -> None:
        self.x, self.y = X, Y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


def half() -> Subset:
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    return Subset(TensorDataset(X, Y), order[hvd.rank() :: hvd.size()].tolist())


def dealt(dataset: Any) -> DataLoader:
    sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
    return DataLoader(dataset, 8, sampler=sampler)


@pytest.mark.parametrize(
    ("loader", "is_told"),
    [
        (lambda: DataLoader(TensorDataset(X, Y), 8, shuffle=True), True),
        (lambda: DataLoader(Rows(), 8, shuffle=True), True),
        (lambda: dealt(TensorDataset(X, Y)), False),
        (lambda: dealt(Rows()), False),
        (lambda: DataLoader(half(), 8, shuffle=True), False),
        (lambda: hvd.shard(DataLoader(Rows(), 8)), False),
    ],
    ids=["tensors", "rows", "dealt tensors", "dealt rows", "subset", "shard"],
)
def test_all_rows(
    loader: Any, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lines.append)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    torch.manual_seed(hvd.rank())  # another order on each rank
    model.fit(loader(), verbose=0)
    told = ["All ranks train on the same rows." in line for line in lines]
    assert sum(told) == (is_told and hvd.rank() == 0)
