"""A rank's place in the job. One process after the other may hold it."""

from __future__ import annotations

import dataclasses

from hvd_keras._job.bootstrap import wire


@dataclasses.dataclass
class Place:
    """The process that holds a rank of the job, and its last epoch."""

    epoch: int  # the last epoch that a process of this rank was told
    holder: str | None = None  # its process; None: nobody holds it yet
    is_for_newcomer: bool = False  # the launcher has started a new process

    def refusal(self, identity: wire.Identity) -> str | None:
        """Returns why that process must not take this place; None if it may."""
        rank, process = identity.rank, identity.process
        if identity.epoch > self.epoch:
            return (
                f"Rank {rank} must come from an epoch of this server, up to "
                f"{self.epoch}. Received: {process}, which was in epoch "
                f"{identity.epoch}."
            )
        if self.holder == process or (
            self.holder is None and not self.is_for_newcomer
        ):
            return None
        if self.holder is None and identity.epoch == 0:
            return None
        if self.holder is None or 0 < identity.epoch < self.epoch:
            return (
                f"Rank {rank} was given to another process after epoch "
                f"{identity.epoch}. Received: {process}, which was in that "
                "epoch and comes too late."
            )
        return (
            f"Rank {rank} is there already: {self.holder} has joined epoch "
            f"{self.epoch}. Received: {process}. It may be a child of that "
            "process, which must not call `init()`."
        )
