"""Members of a job without processes, sockets and clocks."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.generation import Peer
from hvd_keras._rendezvous.generations import Generations
from hvd_keras._rendezvous.protocol import FrameType, Identity, Role
from hvd_keras.run.hosts.placement import Plan, PlannedHost

HEADER = protocol.EXCHANGE_HEADER


def plan_of(hosts: Mapping[str, int], num_ranks: int | None = None) -> Plan:
    """Returns the plan of a job over ssh, by the slots of hosts."""
    planned = tuple(PlannedHost(name, slots) for name, slots in hosts.items())
    return Plan("ssh", planned, num_ranks)


def come(
    generations: Generations,
    number: int,
    now: float = 0.0,
    *,
    generation: int = 0,
    size: int = 0,
) -> Peer:
    """Lets a process ask to join, which is not refused."""
    identity = Identity(Role.MEMBER, number, size, generation, 100 + number)
    assert generations.refusal(identity) is None
    peer = Peer(identity, bytearray())
    generations.joined(peer, now)
    return peer


def heard(peer: Peer) -> list[tuple[FrameType, bytes]]:
    """Returns what a peer was told since the last call."""
    found = []
    while peer.unsent:
        kind, length = protocol.frame_header(
            bytes(peer.unsent[: protocol.FRAME_HEADER_BYTES])
        )
        end = protocol.FRAME_HEADER_BYTES + length
        body = bytes(peer.unsent[protocol.FRAME_HEADER_BYTES : end])
        found.append((FrameType(kind), body))
        del peer.unsent[:end]
    return found


def told(peer: Peer) -> str:
    """Returns the one error that a peer was told since the last call."""
    (body,) = [one for kind, one in heard(peer) if kind == FrameType.ERROR]
    assert peer.closes
    return body.decode()


def bring(
    generations: Generations,
    peer: Peer,
    value: bytes = b"",
    now: float = 0.0,
    *,
    round_number: int = 0,
    timeout_seconds: float = 60.0,
    warning_seconds: float = 0.0,
) -> bool:
    """Lets a peer bring its value; returns whether that makes sense."""
    header = HEADER.pack(
        round_number, int(timeout_seconds * 1e3), int(warning_seconds * 1e3)
    )
    return generations.said(peer, FrameType.EXCHANGE, header + value, now)


def get_in(generations: Generations, *peers: Peer, now: float = 0.0) -> None:
    """Lets the members of a generation exchange values and say goodbye."""
    for peer in peers:
        assert bring(generations, peer, now=now)
    for peer in peers:
        assert generations.said(peer, FrameType.GOODBYE, b"", now)
        heard(peer)
