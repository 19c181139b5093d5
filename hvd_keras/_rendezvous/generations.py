"""Who is in a job, as the rendezvous server asks; pure, it is told the time.

Each time that the ranks join, they are a new *generation* of the job, which has
a number. They ask to join and are told which one they have joined. Survivors
and newcomers join the same one. There are `FixedGenerations` and
`ElasticGenerations`.
"""

from __future__ import annotations

from typing import Protocol

from hvd_keras._rendezvous.generation import Peer
from hvd_keras._rendezvous.protocol import Identity


class Generations(Protocol):
    """Hears of the peers that have proved themselves, and answers them."""

    @property
    def size(self) -> int:
        """How many ranks may come."""

    def refusal(self, identity: Identity) -> tuple[str, str] | None:
        """Returns class and text of the error for who must not come in."""

    def joined(self, peer: Peer, now: float) -> None:
        """A rank asks to join."""

    def said(self, peer: Peer, kind: int, body: bytes, now: float) -> bool:
        """A rank has sent a frame; returns whether it makes sense."""

    def lost(self, peer: Peer, now: float) -> None:
        """The connection of a peer has ended."""

    def deadlines(self) -> list[float]:
        """Returns the times at which `step()` must be called."""

    def step(self, now: float) -> None:
        """Does what is due."""

    def last(self) -> int:
        """Returns the last generation that a rank was told; 0: none."""
