"""What `hvd.shard` takes: the same rows by each kind of loader."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd

EPOCHS = 3
NUM_ROWS = 44
GLOBAL_BATCH = 8
NUM_FEATURES = 4


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and targets; the first feature is the row's number."""
    shape = (NUM_ROWS, NUM_FEATURES)
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    x[:, 0] = np.arange(NUM_ROWS)
    return x, x[:, 1:2] * x[:, 2:3]


def arrays() -> Any:
    size = GLOBAL_BATCH // hvd.size()
    return hvd.shard(rows(), batch_size=size, shuffle=True)


class Batches(keras.utils.PyDataset):
    """Batches of 2 rows; so 4 of them make a global batch on 4 ranks."""

    def __len__(self) -> int:
        return NUM_ROWS // 2

    def __getitem__(self, index: int) -> Any:
        x, y = rows()
        return x[2 * index : 2 * index + 2], y[2 * index : 2 * index + 2]


def py_dataset() -> Any:
    return hvd.shard(Batches(), shuffle=True)


def tf_dataset() -> Any:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(rows())
    dataset = dataset.shuffle(16, seed=1, reshuffle_each_iteration=False)
    size = GLOBAL_BATCH // hvd.size()
    return hvd.shard(dataset, batch_size=size)


def tf_datasets() -> Any:
    import tensorflow as tf

    def make_dataset(epoch: int) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(rows())
        return dataset.shuffle(NUM_ROWS, seed=epoch)

    size = GLOBAL_BATCH // hvd.size()
    return hvd.shard(make_dataset, batch_size=size)


def torch_loader() -> Any:
    import torch

    x, y = map(torch.as_tensor, rows())
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y),
        batch_size=GLOBAL_BATCH // hvd.size(),
        shuffle=True,
    )
    return hvd.shard(loader)


def hugging_face() -> Any:
    import datasets

    x, y = rows()
    return hvd.shard(
        datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()}),
        batch_size=GLOBAL_BATCH // hvd.size(),
        shuffle=True,
        collate=lambda batch: (
            batch["x"].astype(np.float32),
            batch["y"].astype(np.float32),
        ),
    )


class Source:
    """The rows, for Grain."""

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = rows()
        return x[index], y[index]


def grain_map_dataset() -> Any:
    import grain

    size = GLOBAL_BATCH // hvd.size()
    data = grain.MapDataset.source(Source())
    return hvd.shard(data, batch_size=size, shuffle=True)


def grain_loader() -> Any:
    import grain

    sampler = grain.samplers.SequentialSampler(NUM_ROWS)
    loader = grain.DataLoader(
        data_source=Source(),
        sampler=sampler,
        shard_options=grain.sharding.NoSharding(),
    )
    size = GLOBAL_BATCH // hvd.size()
    return hvd.shard(loader, batch_size=size, shuffle=True)


ALL: dict[str, Callable[[], Any]] = {
    "arrays, shuffled": arrays,
    "`PyDataset`, shuffled": py_dataset,
    "`tf.data.Dataset`, shuffled once": tf_dataset,
    "function that makes a `tf.data.Dataset`, shuffled": tf_datasets,
    "torch `DataLoader`, shuffled": torch_loader,
    "Hugging Face `Dataset`, shuffled": hugging_face,
    "Grain `MapDataset`, shuffled": grain_map_dataset,
    "Grain `DataLoader`, shuffled": grain_loader,
}
# What they need beside TensorFlow.
NEEDS = {
    torch_loader: "torch",
    hugging_face: "datasets",
    grain_map_dataset: "grain",
    grain_loader: "grain",
}


def found() -> list[str]:
    """Returns the names of the loaders that are installed here."""
    return [
        name
        for name, make in ALL.items()
        if importlib.util.find_spec(NEEDS.get(make, "numpy"))
    ]


# Their steps do not have the same rows on other numbers of ranks.
OTHER_STEPS = ("`PyDataset`, shuffled",)
