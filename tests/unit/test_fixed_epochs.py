"""Who is in a job whose ranks are all in each epoch."""

from __future__ import annotations

import pytest
from virtual_members import bring, come, get_in, heard, told

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.fixed_generations import FixedEpochs
from hvd_keras._rendezvous.generation import Peer
from hvd_keras._rendezvous.protocol import FrameType, Identity, Role

SIZE = 3


def _started() -> FixedEpochs:
    epochs = FixedEpochs(SIZE)
    for rank in range(SIZE):
        epochs.rank_started(rank)
    return epochs


def _all_come(epochs: FixedEpochs, *, epoch: int = 0) -> list[Peer]:
    return [come(epochs, r, epoch=epoch, size=SIZE) for r in range(SIZE)]


def test_ranks_exchange_their_values_by_rank() -> None:
    epochs = _started()
    peers = _all_come(epochs)
    for peer in peers:
        assert heard(peer) == [(FrameType.JOINED, protocol.pack_epoch(1))]
    for peer in reversed(peers):
        assert not heard(peers[0])
        assert bring(epochs, peer, b"%d" % peer.rank)
    values = protocol.pack_values([b"0", b"1", b"2"])
    assert [heard(peer) for peer in peers] == [
        [(FrameType.RESULT, values)]
    ] * SIZE
    for peer in peers:
        assert bring(epochs, peer, round_number=1)
        assert not epochs.are_over(1)
    for peer in peers:
        assert epochs.said(peer, FrameType.GOODBYE, b"", 0.0)
    assert epochs.are_over(1)
    assert epochs.failure() is None
    assert epochs.last_epoch() == 1


@pytest.mark.parametrize("how", ["lost", "exited", "aborts"])
def test_one_that_goes_fails_the_epoch_for_all_that_come(how: str) -> None:
    epochs = _started()
    first, gone = (come(epochs, rank, size=SIZE) for rank in (0, 1))
    if how == "lost":
        epochs.lost(gone, 0.0)
        what = "went away during `init()` (pid 101) before the job was up."
    elif how == "exited":
        epochs.rank_exited(1, "(pid 101) exited with code 3")
        what = "(pid 101) exited with code 3 before the job was up."
    else:
        assert epochs.said(gone, FrameType.ABORT, b"no GPU", 0.0)
        what = "(pid 101) gave up in `init()`: no GPU"
    text = f"PeerLostError\nRank 1 {what}"
    late = come(epochs, 2, size=SIZE)
    assert told(first) == text
    assert told(late) == text
    assert epochs.failure() == tuple(text.split("\n"))
    assert epochs.are_over(1)
    # The next epoch is not concerned, once another has taken that place.
    epochs.rank_started(1)
    again = [come(epochs, rank, epoch=1, size=SIZE) for rank in (0, 2)]
    again.append(come(epochs, 1, size=SIZE))
    get_in(epochs, *again)
    assert epochs.last_epoch() == 2
    assert epochs.failure() is None


def test_who_waits_hears_of_the_missing_and_gives_up_in_time() -> None:
    epochs = _started()
    first, second = (come(epochs, rank, size=SIZE) for rank in (0, 1))
    bring(epochs, first, now=100.0, timeout_seconds=30, warning_seconds=5)
    bring(epochs, second, now=101.0, timeout_seconds=60)
    assert sorted(epochs.deadlines()) == [105.0, 130.0]
    heard(first)
    epochs.step(104.9)
    assert not heard(first)
    epochs.step(105.0)
    ((kind, text),) = heard(first)
    assert kind == FrameType.NOTICE
    assert b"has waited 5 s" in text
    assert b"Missing ranks: 2; waiting ranks: 0, 1." in text
    assert epochs.deadlines() == [130.0]
    epochs.step(130.0)
    assert "All 3 ranks must call `init()` within 30 s" in told(first)
    assert told(second).startswith("StalledError\n")
    assert epochs.deadlines() == []


def test_nonsense_and_what_comes_too_late() -> None:
    epochs = _started()
    peers = _all_come(epochs)
    assert not bring(epochs, peers[0], round_number=1)
    assert not epochs.said(peers[0], FrameType.RESULT, b"", 0.0)
    assert bring(epochs, peers[0])
    assert not bring(epochs, peers[0])  # twice
    for peer in peers[1:]:
        bring(epochs, peer)
    epochs.said(peers[0], FrameType.GOODBYE, b"", 0.0)
    assert bring(epochs, peers[0], round_number=1)
    assert "Rank 0 has left epoch 1" in told(peers[0])


def test_strangers_are_refused() -> None:
    epochs = _started()
    for rank, size in ((0, 2), (3, 3)):
        error, text = epochs.refusal(Identity(Role.MEMBER, rank, size, 0, 7))  # type: ignore[misc]
        assert error == "MismatchError"
        assert f"Received: rank={rank} size={size} (pid 7)." in text
    come(epochs, 0, size=SIZE)
    _, text = epochs.refusal(Identity(Role.MEMBER, 0, SIZE, 0, 7))  # type: ignore[misc]
    assert "Rank 0 is there already: pid 100 has joined epoch 1." in text
