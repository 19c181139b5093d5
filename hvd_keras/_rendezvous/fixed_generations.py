"""Who is in a job whose ranks are all in each epoch."""

from __future__ import annotations

import dataclasses

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.generation import Membership, Peer
from hvd_keras._rendezvous.protocol import FrameType, Identity


@dataclasses.dataclass
class _Place:
    """The process that holds a rank of the job; one after the other may."""

    epoch: int  # the last epoch that a process of this rank was told
    holder: str | None = None  # its process; None: nobody holds it yet
    is_for_newcomer: bool = False  # the launcher has started a new process

    def refusal(self, identity: Identity) -> str | None:
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


class FixedEpochs:
    """See `Epochs`. Its owner says which processes start and end."""

    def __init__(self, size: int, last_epoch: int = 0) -> None:
        """Knows of no process.

        Args:
            size: Number of ranks in the job.
            last_epoch: The first membership here gets the next epoch.
        """
        self.size = size
        self._memberships: dict[int, Membership] = {}  # by epoch
        self._places = [_Place(last_epoch) for _ in range(size)]  # by rank
        self._exited: dict[int, str] = {}  # rank -> what became of it

    # ---- For the launcher ----

    def set_size(self, size: int) -> None:
        """Sets the number of ranks, before any of them is started."""
        self.size = size
        self._places = [_Place(0) for _ in range(size)]

    def rank_started(self, rank: int) -> None:
        """Notes that a process was started for `rank`.

        If there was one before, the new one may take its place, and the old one
        is refused from now on. Earlier failures do not concern the new one.
        """
        place = self._places[rank]
        failed = (m.epoch for m in self._memberships.values() if m.failure)
        place.epoch = max(place.epoch, *failed, 0)
        # A newcomer that ended before it came still bars its predecessor.
        place.is_for_newcomer |= place.holder is not None
        place.holder = None
        self._exited.pop(rank, None)

    def rank_exited(self, rank: int, what: str) -> None:
        """Notes that the process of `rank` has ended, and how."""
        self._exited[rank] = what
        for membership in self._memberships.values():
            membership.fail_without(rank, what)

    def are_over(self, epoch: int) -> bool:
        """Whether all epochs up to `epoch` are over."""
        return epoch in self._memberships and all(
            m.is_over for m in self._memberships.values()
        )

    def last_epoch(self) -> int:
        return max(self._memberships, default=0)

    def failure(self) -> tuple[str, str] | None:
        """Returns class and text of the error of the last epoch, if it failed.

        None: there was none yet, or it goes on, or all went well.
        """
        if not self._memberships:
            return None
        return self._memberships[max(self._memberships)].failure

    # ---- For the server ----

    def refusal(self, identity: Identity) -> tuple[str, str] | None:
        rank = identity.rank
        if identity.size != self.size or rank >= self.size:
            return "MismatchError", (
                f"The job has {self.size} ranks. Received: rank={rank} "
                f"size={identity.size} ({identity.process})."
            )
        reason = self._places[rank].refusal(identity)
        return None if reason is None else ("LaunchError", reason)

    def joined(self, peer: Peer, now: float) -> None:
        place = self._places[peer.rank]
        # The next one, also if that has failed: then this rank must know. All
        # ranks are in every membership, so none is left out.
        place.epoch += 1
        place.holder = peer.identity.process
        membership = self._memberships.setdefault(
            place.epoch, Membership(place.epoch, self.size)
        )
        membership.admit(peer)
        peer.send(FrameType.JOINED, protocol.pack_epoch(membership.epoch))
        if membership.failure is not None:
            peer.refuse(*membership.failure)
        elif self._exited:
            first = min(self._exited)
            membership.fail_without(first, self._exited[first])

    def said(self, peer: Peer, kind: int, body: bytes, now: float) -> bool:
        membership = peer.membership
        return membership is not None and membership.said(peer, kind, body, now)

    def lost(self, peer: Peer, now: float) -> None:
        if peer.membership is not None:
            peer.membership.lost(peer, self._exited.get(peer.rank, ""))

    def deadlines(self) -> list[float]:
        found = [m.deadlines() for m in self._memberships.values()]
        return [deadline for deadlines in found for deadline in deadlines]

    def step(self, now: float) -> None:
        for membership in self._memberships.values():
            membership.step(now, "StalledError")
