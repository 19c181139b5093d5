"""The places that members of an elastic job get."""

from __future__ import annotations

import itertools

import pytest

from hvd_keras._job.hosts import partition
from hvd_keras._rendezvous import roster
from hvd_keras._rendezvous.roster import Member, State


def _member(number: int, host: str, slot: int = -1, rank: int = -1) -> Member:
    found = Member(number, host, slot)
    if rank >= 0:
        found.joined, found.rank = 1, rank
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
    """Not even if it was given a place in a generation that then failed."""
    late = _member(5, "a")
    late.generation = 2
    assert roster.ordered([late, _member(1, "a", 1, rank=3)])[0].number == 1


def test_the_host_of_the_launcher_comes_first_if_it_can() -> None:
    """Half of the ranks can go on with rank 0 and the launcher alone."""
    far = _member(1, "b", 0, rank=0)
    beside = _member(2, "a", 0, rank=1)
    beside.is_beside_server = True
    far.first = beside.first = 1
    assert roster.ordered([far, beside]) == [beside, far]
    # It came in the last generation, perhaps without its state.
    far.joined = beside.joined = beside.first = 2
    assert roster.ordered([far, beside]) == [far, beside]
    far.joined = beside.joined = 3
    assert roster.ordered([far, beside]) == [beside, far]
    beside.joined = 2  # it was late
    assert roster.ordered([far, beside]) == [far, beside]
    newcomer = _member(3, "a")
    newcomer.is_beside_server = True
    assert roster.ordered([newcomer, far]) == [far, newcomer]
    first = _member(2, "b")  # nobody has a state
    assert roster.ordered([newcomer, first]) == [first, newcomer]


def test_who_was_in_last_comes_before_one_that_missed_it() -> None:
    late, last = _member(1, "a", 0, rank=0), _member(2, "a", 1, rank=1)
    late.first = last.first = 1
    late.generation = last.generation = last.joined = 2
    assert roster.ordered([late, last]) == [last, late]


def test_who_came_in_the_newest_generation_may_have_no_state() -> None:
    """That generation may have ended before rank 0 gave it."""
    late, old, unheard = (_member(n, host) for n, host in enumerate("abc"))
    for member, rank in ((late, 1), (old, 2)):
        member.generation, member.joined, member.rank = 4, 4, rank
    late.first, old.first = 4, 2
    assert roster.ordered([late, old])[0] is old
    # Its goodbye of generation 4 was lost; it was in before all the same.
    unheard.generation, unheard.joined, unheard.first = (
        4,
        3,
        1,
    )
    assert roster.ordered([late, unheard]) == [unheard, late]
    unheard.generation = 3  # it was left out of that generation
    assert roster.ordered([late, unheard]) == [late, unheard]


def test_newcomers_take_the_lowest_free_slots() -> None:
    old = [_member(1, "a", 1, rank=0), _member(2, "a", 3, rank=1)]
    seats = roster.seats(old)
    assert [s.local_rank for s in seats] == [0, 1]
    seats = roster.seats([*old, late := _member(4, "a")])
    assert [s.local_rank for s in seats] == [1, 2, 0]
    late.joined = 2
    told = Member(7, "b", 3, has_own_slot=True)
    assert roster.seats([told])[0].local_rank == 0
    assert told.slot == 3
    seats = roster.seats([*old, late, _member(5, "a"), _member(6, "b")])
    assert [s.local_rank for s in seats] == [1, 3, 0, 2, 0]


@pytest.mark.parametrize("size", range(1, 6))
def test_the_launcher_stops_the_side_that_the_core_stops(size: int) -> None:
    """Whoever is known to have ended counts for the side of its host."""
    for hosts in itertools.product("abc", repeat=size):
        last = [
            _member(rank, host, rank, rank) for rank, host in enumerate(hosts)
        ]
        for ended in itertools.product([False, True], repeat=size):
            for member, has_ended in zip(last, ended, strict=True):
                member.state = State.ENDED if has_ended else State.WAITING
                member.is_cut_off = member.host != "a"
            lost = [rank for rank, host in enumerate(hosts) if host != "a"]
            assert roster.may_go_on(last) == partition.may_go_on(lost, size)


def test_nobody_is_cut_off_before_the_first_generation() -> None:
    assert roster.may_go_on([])
