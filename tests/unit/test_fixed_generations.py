"""Who is in a job whose ranks are all in each generation."""

from __future__ import annotations

import pytest
from virtual_members import bring, come, get_in, heard, told

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.fixed_generations import FixedGenerations
from hvd_keras._rendezvous.generation import Peer
from hvd_keras._rendezvous.protocol import FrameType, Identity, Role

SIZE = 3


def _started() -> FixedGenerations:
    generations = FixedGenerations(SIZE)
    for rank in range(SIZE):
        generations.rank_started(rank)
    return generations


def _all_come(
    generations: FixedGenerations, *, generation: int = 0
) -> list[Peer]:
    return [
        come(generations, r, generation=generation, size=SIZE)
        for r in range(SIZE)
    ]


def test_ranks_exchange_their_values_by_rank() -> None:
    generations = _started()
    peers = _all_come(generations)
    for peer in peers:
        assert heard(peer) == [(FrameType.JOINED, protocol.pack_generation(1))]
    for peer in reversed(peers):
        assert not heard(peers[0])
        assert bring(generations, peer, b"%d" % peer.rank)
    values = protocol.pack_values([b"0", b"1", b"2"])
    assert [heard(peer) for peer in peers] == [
        [(FrameType.RESULT, values)]
    ] * SIZE
    for peer in peers:
        assert bring(generations, peer, round_number=1)
        assert not generations.are_over(1)
    for peer in peers:
        assert generations.said(peer, FrameType.GOODBYE, b"", 0.0)
    assert generations.are_over(1)
    assert generations.failure() is None
    assert generations.last() == 1


@pytest.mark.parametrize("how", ["lost", "exited", "aborts"])
def test_one_that_goes_fails_the_generation_for_all_that_come(how: str) -> None:
    generations = _started()
    first, gone = (come(generations, rank, size=SIZE) for rank in (0, 1))
    if how == "lost":
        generations.lost(gone, 0.0)
        what = "went away during `init()` (pid 101) before the job was up."
    elif how == "exited":
        generations.rank_exited(1, "(pid 101) exited with code 3")
        what = "(pid 101) exited with code 3 before the job was up."
    else:
        assert generations.said(gone, FrameType.ABORT, b"no GPU", 0.0)
        what = "(pid 101) gave up in `init()`: no GPU"
    text = f"PeerLostError\nRank 1 {what}"
    late = come(generations, 2, size=SIZE)
    assert told(first) == text
    assert told(late) == text
    assert generations.failure() == tuple(text.split("\n"))
    assert generations.are_over(1)
    # The next generation is not concerned, once another has taken that place.
    generations.rank_started(1)
    again = [
        come(generations, rank, generation=1, size=SIZE) for rank in (0, 2)
    ]
    again.append(come(generations, 1, size=SIZE))
    get_in(generations, *again)
    assert generations.last() == 2
    assert generations.failure() is None


def test_who_waits_hears_of_the_missing_and_gives_up_in_time() -> None:
    generations = _started()
    first, second = (come(generations, rank, size=SIZE) for rank in (0, 1))
    bring(generations, first, now=100.0, timeout_seconds=30, warning_seconds=5)
    bring(generations, second, now=101.0, timeout_seconds=60)
    assert sorted(generations.deadlines()) == [105.0, 130.0]
    heard(first)
    generations.step(104.9)
    assert not heard(first)
    generations.step(105.0)
    ((kind, text),) = heard(first)
    assert kind == FrameType.NOTICE
    assert b"has waited 5 s" in text
    assert b"Missing ranks: 2; waiting ranks: 0, 1." in text
    assert generations.deadlines() == [130.0]
    generations.step(130.0)
    assert "All 3 ranks must call `init()` within 30 s" in told(first)
    assert told(second).startswith("StalledError\n")
    assert generations.deadlines() == []


def test_nonsense_and_what_comes_too_late() -> None:
    generations = _started()
    peers = _all_come(generations)
    assert not bring(generations, peers[0], round_number=1)
    assert not generations.said(peers[0], FrameType.RESULT, b"", 0.0)
    assert bring(generations, peers[0])
    assert not bring(generations, peers[0])  # twice
    for peer in peers[1:]:
        bring(generations, peer)
    generations.said(peers[0], FrameType.GOODBYE, b"", 0.0)
    assert bring(generations, peers[0], round_number=1)
    assert "Rank 0 has left generation 1" in told(peers[0])


def test_strangers_are_refused() -> None:
    generations = _started()
    for rank, size in ((0, 2), (3, 3)):
        error, text = generations.refusal(
            Identity(Role.MEMBER, rank, size, 0, 7)
        )  # type: ignore[misc]
        assert error == "MismatchError"
        assert f"Received: rank={rank} size={size} (pid 7)." in text
    come(generations, 0, size=SIZE)
    _, text = generations.refusal(Identity(Role.MEMBER, 0, SIZE, 0, 7))  # type: ignore[misc]
    assert "Rank 0 is there already: pid 100 has joined generation 1." in text
