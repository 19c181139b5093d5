"""The places that members of an elastic job get."""

from __future__ import annotations

from collections.abc import Collection

from hvd_keras._job.bootstrap import roster
from hvd_keras._job.bootstrap.roster import Member, State


def _member(number: int, host: str, slot: int = -1, rank: int = -1) -> Member:
    found = Member(number, host, slot)
    if rank >= 0:
        found.joined_epoch, found.rank = 1, rank
    return found


def test_hosts_come_by_their_lowest_old_rank_and_newcomers_last() -> None:
    members = [
        _member(9, "c"),
        _member(8, "b"),
        _member(3, "a", 1, rank=3),
        _member(2, "b", 0, rank=1),
    ]
    found = roster.ordered(members)
    assert [m.number for m in found] == [2, 8, 3, 9]
    seats = roster.seats(found)
    assert [s.rank for s in seats] == [0, 1, 2, 3]
    assert [s.cross_rank for s in seats] == [0, 0, 1, 2]
    assert [s.local_rank for s in seats] == [0, 1, 0, 0]
    assert [s.local_size for s in seats] == [2, 2, 1, 1]


def test_a_newcomer_never_comes_before_a_survivor() -> None:
    """Not even if it was given a place in an epoch that then failed."""
    late = _member(5, "a")
    late.epoch = 2
    assert roster.ordered([late, _member(1, "a", 1, rank=3)])[0].number == 1


def test_the_host_of_the_launcher_comes_first_if_it_can() -> None:
    """Half of the ranks can go on with rank 0 and the launcher alone."""
    far = _member(1, "b", 0, rank=0)
    beside = _member(2, "a", 0, rank=1)
    beside.is_beside_server = True
    far.first_epoch = beside.first_epoch = 1
    assert roster.ordered([far, beside]) == [beside, far]
    # It came in the last epoch, perhaps without its state.
    far.joined_epoch = beside.joined_epoch = beside.first_epoch = 2
    assert roster.ordered([far, beside]) == [far, beside]
    far.joined_epoch = beside.joined_epoch = 3
    assert roster.ordered([far, beside]) == [beside, far]
    beside.joined_epoch = 2  # it was late
    assert roster.ordered([far, beside]) == [far, beside]
    newcomer = _member(3, "a")
    newcomer.is_beside_server = True
    assert roster.ordered([newcomer, far]) == [far, newcomer]


def test_newcomers_take_the_lowest_free_slots() -> None:
    old = [_member(1, "a", 1, rank=0), _member(2, "a", 3, rank=1)]
    seats = roster.seats(old)
    assert [s.local_rank for s in seats] == [0, 1]
    seats = roster.seats([*old, late := _member(4, "a")])
    assert [s.local_rank for s in seats] == [1, 2, 0]
    late.joined_epoch = 2
    told = Member(7, "b", 3, has_own_slot=True)
    assert roster.seats([told])[0].local_rank == 0
    assert told.slot == 3
    seats = roster.seats([*old, late, _member(5, "a"), _member(6, "b")])
    assert [s.local_rank for s in seats] == [1, 3, 0, 2, 0]


def test_one_side_of_a_network_goes_on() -> None:
    def may_go_on(silent: set[int], ended: Collection[int] = ()) -> bool:
        last = [_member(rank, "a", rank, rank) for rank in range(4)]
        for rank in silent:
            last[rank].state = State.SILENT
        for rank in ended:
            last[rank].state = State.ENDED
        return roster.may_go_on(last)

    assert may_go_on({3})
    assert not may_go_on({1, 2, 3})
    assert may_go_on({2, 3})  # half, with the lowest rank
    assert not may_go_on({0, 1})
    assert may_go_on({3}, ended={0, 1})  # those are on no side
    assert not may_go_on({2, 3}, ended={0})
    assert may_go_on(set(), ended={0, 1, 2, 3})


def test_a_tie_is_decided_by_the_ranks_of_the_last_epoch() -> None:
    """Also if not all of its members have come so far as to know them."""
    here, silent = _member(4, "a", rank=1), _member(5, "b")
    silent.state = State.SILENT
    assert roster.may_go_on([here, silent])
    assert not roster.may_go_on([silent, here])
