"""Each rule of advice: a job that it speaks of, and one that it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated_recordings import MS, Job, jitter, slow

from hvd_keras._observe.advice import (
    RULES,
    Advice,
    advise,
    slow_network,
    unsure_clocks,
)
from hvd_keras._observe.analysis import analyze
from hvd_keras._observe.recording import CALL, STATES, Recording


def advice(record: Recording) -> dict[str, Advice]:
    return {one.rule: one for one in advise(analyze(record))}


def with_open_call(missing: int, waited_ms: int) -> Recording:
    """All ranks but one call "x" at the end, and wait in vain."""
    record = Job(size=4, ranks_per_host=2).record()
    for one in record.ranks:
        if one.rank == missing:
            continue
        call = np.zeros(1, CALL)
        call["name"] = len(one.names)
        call["state"] = STATES.index("failed")
        call["enqueued_ns"] = one.steps["end_ns"][-1]
        call["ended_ns"] = call["enqueued_ns"] + waited_ms * MS
        one.names = [*one.names, "metrics/loss"]
        one.calls = np.concatenate([one.calls, call])
    return record


def late_without_cause(job: Job) -> Recording:
    """Rank 3 is late."""
    record = job.record()
    # It spends as much as others, and yet is late: as with a wrong clock.
    for name in ("begin_ns", "end_ns"):
        record.ranks[3].steps[name] += 8 * MS
    record.ranks[3].calls["enqueued_ns"] += 8 * MS
    for one in record.ranks:
        for name in ("negotiated_ns", "begun_ns", "ended_ns"):
            one.calls[name] += 8 * MS
    return record


def without_rank(rank: int) -> Recording:
    record = Job(size=4).record()
    del record.ranks[rank]
    return record


def stops_once(milliseconds: float) -> Callable[[int, int], float]:
    return lambda rank, step: milliseconds if (rank, step) == (1, 5) else 1.0


def slow_host(milliseconds: float) -> Job:
    return Job(
        size=8,
        ranks_per_host=4,
        compute_ms=lambda r, _: 40.0 + milliseconds * (r >= 4) + 0.01 * (r % 4),
        wire_bytes_per_ms=4e6,
    )


SMALL = {"bucket_bytes": (4096,) * 20, "start_ms": 1.5}
WIRE = {"size": 4, "ranks_per_host": 2}
SLOW_WIRE = Job(**WIRE, wire_bytes_per_ms=2e5)
CASES: dict[str, tuple[Recording, Recording]] = {
    "unanswered_call": (with_open_call(2, 30_000), with_open_call(2, 100)),
    "pause": (
        Job(input_ms=stops_once(4200.0)).record(),
        Job(input_ms=stops_once(90.0)).record(),
    ),
    "late_rank": (
        Job(size=4, input_ms=slow(2, 13.0)).record(),
        Job(size=4, input_ms=slow(2, 2.0)).record(),
    ),
    "late_host": (slow_host(12.0).record(), slow_host(0.5).record()),
    "slow_input": (
        Job(input_ms=lambda rank, step: 60.0).record(),
        Job(input_ms=slow(1, 60.0)).record(),  # that of one rank
    ),
    "slow_network": (
        SLOW_WIRE.record(),
        Job(**WIRE, wire_bytes_per_ms=4e6).record(),
    ),
    "much_transfer": (
        Job(bytes_per_ms=2e5).record(),
        Job(bytes_per_ms=4e6).record(),
    ),
    "small_collectives": (
        Job(**SMALL, tensors_per_bucket=1).record(),
        Job(**SMALL, tensors_per_bucket=30).record(),
    ),
    "uneven_ranks": (
        Job(size=8, num_steps=60, input_ms=jitter(1, 30)).record(),
        Job(size=8, num_steps=60, input_ms=jitter(1, 1)).record(),
    ),
    "missing_records": (without_rank(1), Job(size=4).record()),
    "unsure_clocks": (
        Job(**WIRE, clock_error_ns=MS).record(),
        Job(**WIRE, clock_error_ns=MS, input_ms=slow(1, 5.0)).record(),
    ),
}


def test_every_rule_has_its_cases() -> None:
    assert {rule.__name__ for rule in RULES} == set(CASES)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_speaks_where_it_should(rule: str) -> None:
    speaks, is_silent = CASES[rule]
    assert rule in advice(speaks)
    assert rule not in advice(is_silent)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            "unanswered_call",
            "Rank 2 (host b, pid 4002) never called 'metrics/loss'; "
            "ranks 0, 1 and 3 waited 30.0 s for it.",
        ),
        (
            "pause",
            "Rank 1 (host a, pid 4001) stood still for 4.2 s, 0.2 s after "
            "the start.",
        ),
        (
            "late_rank",
            "Rank 2 (host a, pid 4002) was last in 100 % of steps, by 12 ms: "
            "its input is slow (13 ms between steps, 1 ms on the others).",
        ),
        (
            "late_host",
            "A rank of host b was last in 100 % of steps, by 12 ms: its "
            "ranks' computing is slow (54 ms a step, 42 ms on the others).",
        ),
        (
            "slow_network",
            "The network between a and b holds the job up: collectives move "
            "199 MB/s and wait for other hosts 100 % of their time. Exposed "
            "transfer is 50 % of a step. A step takes 86 ms and would take "
            "about 43 ms with int8, 43 ms with int4, and 46 ms with local "
            "updates every 20 steps.",
        ),
        (
            "uneven_ranks",
            "Ranks wait for each other 15 % of the time, and no rank is to "
            "blame: none was last in more than 20 % of steps.",
        ),
        ("missing_records", "The record is not whole: rank 1 left no record."),
    ],
)
def test_advice_in_words(rule: str, text: str) -> None:
    assert advice(CASES[rule][0])[rule].text == text


def test_the_two_ranks_of_a_pair_that_take_turns_are_not_late() -> None:
    job = Job(num_steps=60, input_ms=jitter(1, 20))
    assert "late_rank" not in advice(job.record())


@pytest.mark.parametrize(
    ("late_to_begin", "text"),
    [
        ([1], "Rank 1 (host a, pid 4001) stood"),
        ([0], "Rank 0 (host a, pid 4000) stood"),
        ([None], "A rank (which one is not in the record) stood"),
        ([1, 0], "There were 2 such pauses, of ranks 0 and 1."),
        ([None, 1], "There were 2 such pauses, of rank 1."),
        ([None, None], "There were 2 such pauses."),
    ],
)
def test_a_rank_that_was_stopped_when_it_had_come(
    late_to_begin: list[int | None], text: str
) -> None:
    record = Job(num_steps=20).record()
    for call, late in zip((20, 60), late_to_begin, strict=False):
        # The first is the longest, and comes first.
        stop = 2000 * MS if call == 20 else 1500 * MS
        moment = record.ranks[0].calls["begun_ns"][call]
        for one in record.ranks:
            for array in (one.calls, one.steps):
                for name in (n for n in array.dtype.names if n.endswith("_ns")):
                    array[name][array[name] > moment] += stop
            if one.rank == late:
                one.calls["begun_ns"][call] += stop
    found = advice(record)
    assert text in found["pause"].text
    assert " stood still for 2.0 s, 0.2 s after the" in found["pause"].text
    assert ("There were" in found["pause"].text) == (len(late_to_begin) > 1)
    assert "late_rank" not in found


def test_a_pause_is_as_long_as_ten_steps() -> None:
    job = Job(compute_ms=lambda rank, step: 400.0, input_ms=stops_once(3000.0))
    assert "pause" not in advice(job.record())


@pytest.mark.parametrize(
    ("changes", "speaks"),
    [
        ({"bucket_bytes": (4096,) * 10}, True),
        ({"bucket_bytes": (4096,) * 9}, False),
        ({"bucket_bytes": (64 << 10,) * 20}, False),
        ({"tensors_per_bucket": 2}, False),
        ({"start_ms": 0.05}, False),
    ],
)
def test_what_small_collectives_are(
    changes: dict[str, Any], speaks: bool
) -> None:
    job = Job(**{**SMALL, "tensors_per_bucket": 1, **changes})
    assert ("small_collectives" in advice(job.record())) is speaks


@pytest.mark.parametrize("rule", ["pause", "late_rank", "late_host"])
def test_ranks_that_wait_for_one_are_not_uneven(rule: str) -> None:
    assert "uneven_ranks" not in advice(CASES[rule][0])


@pytest.mark.parametrize(
    ("close", "num_steps", "share"),
    [(4, 10, ""), (5, 10, ""), (6, 10, "60 %"), (1, 1, "100 %"), (0, 0, "")],
)
def test_clocks_are_unsure_if_they_are_so_in_most_steps(
    close: int, num_steps: int, share: str
) -> None:
    found = analyze(CASES["unsure_clocks"][0])
    last = dataclasses.replace(found.last, num_close=close, num_units=num_steps)
    told = unsure_clocks(dataclasses.replace(found, last=last))
    assert (told is not None) == bool(share)
    if told is not None:
        assert told.text.startswith(f"In {share} of steps the ranks came")


def test_a_slow_link_is_the_cause_of_what_has_no_other() -> None:
    record = CASES["slow_network"][0]
    found = dataclasses.replace(analyze(record), slow_sender="b")
    first, *_ = advise(found)
    assert first.text.startswith(
        "Host b (ranks 2 and 3) sends slowly, and the other hosts wait for it: "
    )


@pytest.mark.parametrize(
    ("changes", "speaks"),
    [
        ({"slow_sender": "b"}, False),
        ({}, True),
        ({"slow_sender": "b", "wire_share": {}}, True),
    ],
)
def test_a_slow_link_is_why_a_rank_is_late_without_another_cause(
    changes: dict[str, Any], speaks: bool
) -> None:
    record = late_without_cause(SLOW_WIRE)
    found = dataclasses.replace(analyze(record), **changes)
    assert ("late_rank" in {one.rule for one in advise(found)}) is speaks
    late = dataclasses.replace(SLOW_WIRE, input_ms=slow(2, 30.0)).record()
    found = dataclasses.replace(analyze(late), **changes)
    assert "late_rank" in {one.rule for one in advise(found)}


@pytest.mark.parametrize(
    ("hosts", "where"), [("dbca", "a, b, c and d"), ("abcde", "5 hosts")]
)
def test_a_network_of_many_hosts_is_not_listed(hosts: str, where: str) -> None:
    found = analyze(CASES["slow_network"][0])
    shares = dict.fromkeys(hosts, 0.9)
    told = slow_network(dataclasses.replace(found, wire_share=shares))
    assert told is not None
    assert told.text.startswith(f"the network between {where} holds the job")


@pytest.mark.parametrize(
    ("slow_part", "cause"),
    [
        (
            {"input_ms": slow(2, 13.0)},
            "its input is slow (38 ms up to the first call of a step, 26 ms on "
            "the others).",
        ),
        (
            {"compute_ms": slow(2, 52.0, 40.0)},
            "its computing is slow (55 ms a step, 43 ms on the others).",
        ),
    ],
)
def test_input_within_steps_is_told_from_slow_computing(
    slow_part: dict[str, Callable[[int, int], float]], cause: str
) -> None:
    job = Job(size=4, reads_in_steps=True, **slow_part)
    text = advice(job.record())["late_rank"].text
    assert text == (
        "Rank 2 (host a, pid 4002) was last in 100 % of steps, by 12 ms: "
        + cause
    )


def test_a_late_rank_that_the_record_does_not_explain_gets_no_cause() -> None:
    record = late_without_cause(Job(size=4))
    text = advice(record)["late_rank"].text
    assert text.startswith("Rank 3 (host a, pid 4003) was last in 100 %")
    assert text.endswith("the record does not tell why.")


def test_a_rank_that_is_last_twice_in_two_steps_may_be_so_by_chance() -> None:
    assert "late_rank" not in advice(
        Job(num_steps=2, input_ms=slow(1, 13.0)).record()
    )


def test_a_second_fit_counts_its_steps_again() -> None:
    record = Job(num_steps=20, input_ms=slow(1, 13.0)).record()
    for one in record.ranks:
        one.steps["step"] %= 10
    assert analyze(record).last.num_units == 20


def test_a_job_that_loses_nothing_is_told_so() -> None:
    found = advise(analyze(Job(size=2).record()))
    assert [one.rule for one in found] == ["nothing_lost"]
    assert found[0].text.startswith("Ranks lose 7 % of their time to each")
    # It may lose nothing, and yet have a problem.
    assert set(advice(CASES["slow_input"][0])) == {"slow_input"}
    without_steps = Job(size=2).record()
    for one in without_steps.ranks:
        one.steps = one.steps[:0]
    assert advise(analyze(without_steps)) == []


def test_problems_come_first() -> None:
    job = Job(size=4, input_ms=slow(2, 30.0))
    record = dataclasses.replace(job.record(), size=5)
    kinds = [one.severity for one in advise(analyze(record))]
    assert kinds == sorted(kinds, key=("problem", "hint", "good").index)
