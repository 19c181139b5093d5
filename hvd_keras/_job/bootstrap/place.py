"""A rank's place in the job, which one process after the other may hold."""

from __future__ import annotations

import dataclasses

from hvd_keras._job.bootstrap import wire


@dataclasses.dataclass
class Place:
    """Who holds a rank of the job, and how far that rank has come."""

    epoch: int  # the last one that a process of this rank was told
    pid: int | None = None  # None: of nobody yet
    is_for_newcomer: bool = False  # the launcher has started a process anew

    def refusal(self, identity: wire.Identity) -> str | None:
        """Why that process must not take this place; None: it may."""
        rank, pid = identity.rank, identity.pid
        if identity.epoch > self.epoch:
            return (
                f"Rank {rank} must be in an epoch that this server has given, "
                f"up to {self.epoch}. Received: pid {pid}, which was in epoch "
                f"{identity.epoch}."
            )
        if self.pid == pid or (self.pid is None and not self.is_for_newcomer):
            return None
        if self.pid is None and identity.epoch == 0:
            return None
        if self.pid is None or 0 < identity.epoch < self.epoch:
            return (
                f"Rank {rank} was given to another process after epoch "
                f"{identity.epoch}. Received: pid {pid}, which was in that "
                "epoch and comes too late."
            )
        return (
            f"Rank {rank} is there already: pid {self.pid} has joined epoch "
            f"{self.epoch}. Received: pid {pid}, which may be a child of it "
            "and must not call `init()`."
        )
