"""Which processes of an elastic job are started again, where and when."""

from __future__ import annotations

from hvd_keras.run.job.slots import Slot, Slots


def _filled(slots: Slots, *hosts: str) -> list[Slot]:
    for host in hosts:
        slots.add_host(host, 1)
    found = slots.free(0.0)
    for number, slot in enumerate(found):
        slots.hold(slot, number)
    return found


def _fail(slots: Slots, number: int, epoch: int, now: float) -> bool:
    slot = slots.release(number, closes=False)
    assert slot is not None
    return slots.restart(slot, epoch, now)


def test_processes_that_fail_together_are_one_restart() -> None:
    slots = Slots(1, 2.0)
    _filled(slots, "a", "b", "c")
    assert _fail(slots, 0, 4, now=10.0)
    assert _fail(slots, 1, 4, now=10.5)
    assert slots.num_restarts == 1
    assert slots.num_pending() == 2
    assert slots.next_deadline(10.5) == 12.0
    assert [s.host for s in slots.free(12.0)] == ["a"]
    assert not _fail(slots, 2, 5, now=11.0)  # no more are left
    assert [s.host for s in slots.free(99.0)] == ["a", "b"]


def test_one_that_was_in_no_epoch_counts_by_itself() -> None:
    slots = Slots(1, 0.0)
    _filled(slots, "a", "b")
    assert _fail(slots, 0, 0, now=0.0)
    assert not _fail(slots, 1, 0, now=0.0)


def test_one_that_fails_late_is_of_its_epoch() -> None:
    slots = Slots(2, 0.0)
    _filled(slots, "a", "b", "c", "d")
    for number, epoch in enumerate([4, 5, 4, 5]):
        assert _fail(slots, number, epoch, now=0.0)
    assert slots.num_restarts == 2


def test_a_host_cools_down_twice_as_long_each_time() -> None:
    slots = Slots(9, 0.0, (1.0, 3.0))
    (slot,) = _filled(slots, "a")
    now = 0.0
    for epoch, seconds in enumerate([1.0, 2.0, 3.0, 3.0], start=1):
        assert _fail(slots, epoch - 1, epoch, now)
        assert slots.free(now + seconds - 0.1) == []
        now += seconds
        assert slots.free(now) == [slot]
        slots.hold(slot, epoch)


def test_a_slot_that_is_left_over_has_no_deadline() -> None:
    slots = Slots(9, 1.0, (5.0, 5.0))
    _filled(slots, "a")
    slots.add_host("a", 1)
    assert _fail(slots, 0, 1, now=0.0)
    assert slots.next_deadline(0.0) == 5.0  # of both
    assert slots.next_deadline(5.0) is None
    assert len(slots.free(5.0)) == 2


def test_another_host_serves_while_one_cools_down() -> None:
    slots = Slots(9, 0.0, (5.0, 5.0))
    _filled(slots, "a")
    slots.add_host("b", 1)
    assert _fail(slots, 0, 1, now=0.0)
    assert [s.host for s in slots.free(0.0)] == ["b"]
