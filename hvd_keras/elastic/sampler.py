"""A sampler of torch that goes on in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from hvd_keras import basics


class ElasticSampler(Sampler):
    """Deals the rows of a dataset to the ranks, each row once in an epoch.

    It notes which rows the ranks have done. When the members of the job change,
    the rows that are left are dealt to the new ranks. It belongs into a
    `TorchState`.

    Ranks get equally many rows: if they do not divide, the first ones that are
    left are dealt twice.

    Args:
        dataset: What has the rows; only its length matters.
        shuffle: Whether the rows come in another order in each epoch.
        seed: Decides on the orders, with the number of the epoch.

    Attributes:
        epoch: The number of the epoch.
        processed_indices: The rows that the ranks have done in this epoch.
        remaining_indices: Those that were left at the last `reset`, in order.
        num_replicas: The number of ranks that they are dealt to.
        rank: This rank.

    Example:

    >>> sampler = hvd.elastic.ElasticSampler(dataset)
    >>> loader = torch.utils.data.DataLoader(dataset, 32, sampler=sampler)
    >>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
    >>> for number, batch in enumerate(loader):
    ...     train_step(batch)
    ...     state.sampler.record_batch(number, 32)
    ...     state.commit()
    """

    def __init__(
        self, dataset: Sized, shuffle: bool = True, seed: int = 0
    ) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.remaining_indices: list[int] = []
        self.num_replicas, self.rank = 1, 0
        self.num_samples = 0  # of this rank
        self.total_size = 0  # of all ranks
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: no row is done.

        Call it at the end of an epoch, not at its start, so that an epoch that
        was interrupted goes on where it was.
        """
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that this rank has done a batch.

        Args:
            batch_idx: Its number since the last `reset`.
            batch_size: The rows of a batch.
        """
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """Notes that this rank has done rows."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Returns the rows of a batch of this rank."""
        first = batch_idx * batch_size
        return self._own()[first : first + batch_size]

    def reset(self) -> None:
        """Deals the rows that are left to the ranks that there are now."""
        self.num_replicas, self.rank = basics.size(), basics.rank()
        rows = list(range(len(self.dataset)))
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self.seed + self.epoch)
            rows = torch.randperm(len(rows), generator=generator).tolist()
        done = self.processed_indices
        self.remaining_indices = [row for row in rows if row not in done]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch and the rows that are done."""
        return {
            "epoch": self.epoch,
            "processed_indices": set(self.processed_indices),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes back to what `state_dict` returned, and deals anew."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self._own())

    def __len__(self) -> int:
        return self.num_samples

    def _own(self) -> list[int]:
        left = self.remaining_indices
        if not left:
            return []
        times = -(-self.total_size // len(left))
        dealt = (left * times)[: self.total_size]
        return dealt[self.rank :: self.num_replicas]
