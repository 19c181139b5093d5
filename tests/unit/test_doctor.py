"""How the doctor reads stacks and sequences of calls."""

from __future__ import annotations

import dataclasses
import time

from hvd_keras._observe import doctor, stacks
from hvd_keras._observe.evidence import Job, Rank, Record
from hvd_keras._observe.history import next_calls
from hvd_keras._observe.stacks import Frame
from hvd_keras._observe.verdict import Cause

DUMPS = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f02 (most recent call first):
  File "/opt/site-packages/numpy/core.py", line 7 in ones
  File "/home/me/my_data.py", line 88 in next_batch
  File "/home/me/train.py", line 12 in <module>
Current thread 0x00007f02 (most recent call first):
  File "/home/me/my_data.py", line 88 in next_batch
"""


def test_the_main_thread_is_the_last_of_each_dump() -> None:
    first, second = stacks.of_main_thread(DUMPS)
    assert first[-1] == Frame("/home/me/train.py", 12)
    assert second == (Frame("/home/me/my_data.py", 88),)


def test_code_that_is_installed_is_not_the_users() -> None:
    samples = stacks.of_main_thread(DUMPS)
    found = stacks.usual_frame(samples, ["/usr/lib/python3.11/"])
    assert found == Frame("/home/me/my_data.py", 88)


def test_the_last_traceback_counts() -> None:
    text = """\
Traceback (most recent call last):
  File "/home/me/a.py", line 1, in <module>
ValueError: first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/a.py", line 3, in <module>
  File "/home/me/b.py", line 5, in f
ValueError: second
"""
    assert stacks.of_error(text)[0] == Frame("/home/me/b.py", 5)


def test_calls_are_foretold_from_earlier_ones() -> None:
    calls = [(0, name) for name in "abcabca"]
    foretold = next_calls(calls)
    assert [next(foretold)[1] for _ in range(4)] == ["b", "c", "a", "b"]
    assert not list(next_calls([(0, "a"), (0, "b")]))


def ranks(*programs: str) -> Job:
    """A job whose ranks have called by letters and wait in the last one."""
    found = {}
    for number, program in enumerate(programs):
        rank = Rank(number, pid=100 + number, has_record=True, written=100.0)
        for index, name in enumerate(program):
            rank.records.append(
                Record(
                    index + 1,
                    "allreduce",
                    name,
                    enqueued=float(index),
                    begun=index + 0.1,
                    ended=index + 0.2,
                )
            )
        rank.records[-1] = dataclasses.replace(
            rank.records[-1], state="waiting", begun=0.0, ended=0.0
        )
        found[number] = rank
    return Job(len(programs), found)


def cause_of(*programs: str) -> tuple[int, Cause]:
    verdict = doctor.diagnose(ranks(*programs))
    assert verdict is not None
    return verdict.rank, verdict.cause


def test_the_rank_that_left_its_way_is_named() -> None:
    usual = "abcdabcdab"
    assert cause_of(usual, "abcdabcdac") == (1, Cause.SKIPPED)
    assert cause_of("abcdabcdac", usual) == (0, Cause.SKIPPED)
    assert cause_of(usual, usual, "abcdabcdad") == (2, Cause.ORDER)
    assert cause_of("abcdabcda", "abcdabcdd") == (1, Cause.ORDER)
    assert cause_of(usual, "abcdabcdax", usual) == (1, Cause.DIVERGED)


def test_without_a_past_most_ranks_are_right() -> None:
    assert cause_of("a", "x", "a") == (1, Cause.DIVERGED)


def test_a_job_that_does_well_has_no_verdict() -> None:
    assert doctor.diagnose(ranks("abcabc", "abcabc")) is None


def test_a_short_wait_is_no_fault() -> None:
    job = ranks("abcabca", "abcabcab")
    for rank in job.ranks.values():
        rank.written = rank.records[-1].enqueued + 0.1
    assert doctor.diagnose(job) is None


def test_code_that_a_library_makes_is_not_the_users() -> None:
    made = Frame("<string>", 185)
    program = Frame("<string>", 3)
    library = Frame("/opt/site-packages/tensorflow/ops.py", 7)
    found = stacks.own_frame([made, library, program], ())
    assert found == program


def test_a_slow_rank_is_named_soon_after_the_job_has_compiled() -> None:
    records = [
        # Both ranks compile for 30 s, before step 2.
        Record(
            step,
            "allreduce",
            "loss",
            enqueued=step + 30.0 * (step > 1),
            begun=step + 30.4 * (step > 1),
            ended=step + 30.5 * (step > 1),
            last_rank=1,
            late=0.4,
        )
        for step in range(1, 21)
    ]
    late = [dataclasses.replace(one, enqueued=one.begun) for one in records]
    job = Job(
        2,
        {
            rank: Rank(rank, has_record=True, written=50.5, records=own)
            for rank, own in enumerate((records, late))
        },
    )
    verdict = doctor.diagnose(job)
    assert verdict is not None
    assert (verdict.rank, verdict.cause) == (1, Cause.SLOW_INPUT)


def test_a_large_job_that_waits_as_one_is_read_in_seconds() -> None:
    job = ranks(*["abcdefghij" * 20] * 512)
    for rank in job.ranks.values():
        rank.written = 1000.0
    began = time.process_time()
    assert doctor.diagnose(job) is None
    assert time.process_time() - began < 10.0
