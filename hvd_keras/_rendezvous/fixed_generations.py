"""Who is in a job whose ranks are all in each generation."""

from __future__ import annotations

import dataclasses

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.generation import Generation, Peer
from hvd_keras._rendezvous.protocol import FrameType, Identity


@dataclasses.dataclass
class _Place:
    """The process that holds a rank of the job; one after the other may."""

    generation: int  # the last generation that a process of this rank was told
    holder: str | None = None  # its process; None: nobody holds it yet
    is_for_newcomer: bool = False  # the launcher has started a new process

    def refusal(self, identity: Identity) -> str | None:
        """Returns why that process must not take this place; None if it may."""
        rank, process = identity.rank, identity.process
        if identity.generation > self.generation:
            return (
                f"Rank {rank} must come from a generation of this server, up "
                f"to {self.generation}. Received: {process}, which was in "
                f"generation {identity.generation}."
            )
        if self.holder == process or (
            self.holder is None and not self.is_for_newcomer
        ):
            return None
        if self.holder is None and identity.generation == 0:
            return None
        if self.holder is None or 0 < identity.generation < self.generation:
            return (
                f"Rank {rank} was given to another process after "
                f"generation {identity.generation}. Received: {process}, which "
                "was in that generation and comes too late."
            )
        return (
            f"Rank {rank} is there already: {self.holder} has joined "
            f"generation {self.generation}. Received: {process}. It may be a "
            "child of that process, which must not call `init()`."
        )


class FixedGenerations:
    """See `Generations`. Its owner says which processes start and end."""

    def __init__(self, size: int, last_generation: int = 0) -> None:
        """Knows of no process.

        Args:
            size: Number of ranks in the job.
            last_generation: The first one here gets the next number.
        """
        self.size = size
        self._generations: dict[int, Generation] = {}  # by generation
        self._places = [_Place(last_generation) for _ in range(size)]  # by rank
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
        failed = (g.number for g in self._generations.values() if g.failure)
        place.generation = max(place.generation, *failed, 0)
        # A newcomer that ended before it came still bars its predecessor.
        place.is_for_newcomer |= place.holder is not None
        place.holder = None
        self._exited.pop(rank, None)

    def rank_exited(self, rank: int, what: str) -> None:
        """Notes that the process of `rank` has ended, and how."""
        self._exited[rank] = what
        for generation in self._generations.values():
            generation.fail_without(rank, what)

    def are_over(self, generation: int) -> bool:
        """Whether all generations up to `generation` are over."""
        return generation in self._generations and all(
            g.is_over for g in self._generations.values()
        )

    def last(self) -> int:
        return max(self._generations, default=0)

    def failure(self) -> tuple[str, str] | None:
        """Returns class and text of the error of the last one, if it failed.

        None: there was none yet, or it goes on, or all went well.
        """
        if not self._generations:
            return None
        return self._generations[max(self._generations)].failure

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
        # ranks are in every generation, so none is left out.
        place.generation += 1
        place.holder = peer.identity.process
        generation = self._generations.setdefault(
            place.generation, Generation(place.generation, self.size)
        )
        generation.admit(peer)
        peer.send(FrameType.JOINED, protocol.pack_generation(generation.number))
        if generation.failure is not None:
            peer.refuse(*generation.failure)
        elif self._exited:
            first = min(self._exited)
            generation.fail_without(first, self._exited[first])

    def said(self, peer: Peer, kind: int, body: bytes, now: float) -> bool:
        generation = peer.generation
        return generation is not None and generation.said(peer, kind, body, now)

    def lost(self, peer: Peer, now: float) -> None:
        if peer.generation is not None:
            peer.generation.lost(peer, self._exited.get(peer.rank, ""))

    def deadlines(self) -> list[float]:
        found = [g.deadlines() for g in self._generations.values()]
        return [deadline for deadlines in found for deadline in deadlines]

    def step(self, now: float) -> None:
        for generation in self._generations.values():
            generation.step(now, "StalledError")
