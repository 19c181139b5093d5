"""How the doctor reads stacks and sequences of calls."""

from __future__ import annotations

import dataclasses
import time

import pytest

from hvd_keras._observe import doctor
from hvd_keras._observe.call_words import words_of
from hvd_keras._observe.history import next_calls
from hvd_keras._observe.verdict import Cause
from hvd_keras._records import stacks
from hvd_keras._records.evidence import Job, Rank, Record
from hvd_keras._records.stacks import Frame

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


def cause_of(*programs: str) -> tuple[int | None, Cause]:
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
    # The traceback that Keras leaves has no frames of the library.
    script = Frame("train.py", 8)
    assert stacks.own_frame([made, script], ()) == script
    assert stacks.own_frame([program], ()) == program


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


def failed(text: str, *programs: str) -> Job:
    """A job whose ranks have finished their calls, and told an error."""
    job = ranks(*(f"{program}." for program in programs))
    for rank in job.ranks.values():
        rank.records.pop()
        rank.told, rank.exit_status = text, 1
    return job


@pytest.mark.parametrize("kind", ["MismatchError", "ProcessSetMismatchError"])
def test_an_error_of_all_ranks_blames_none(kind: str) -> None:
    job = failed(f"{kind}: All ranks must agree.", "abc", "abc", "abc")
    verdict = doctor.diagnose(job)
    assert verdict is not None
    assert verdict.rank is None
    assert verdict.sentence == f"all ranks raised {kind}: All ranks must agree"
    # One that hvdrun had to end has told nothing.
    job.ranks[1].told, job.ranks[1].signal = "", "SIGTERM"
    job.ranks[1].was_ended = True
    assert doctor.diagnose(job) == verdict
    job.ranks[2].told = "MismatchError: another one"
    assert doctor.diagnose(job) is None


def test_an_error_of_some_ranks_is_not_of_all() -> None:
    job = failed("MismatchError: All ranks must agree.", "abc", "abc")
    job.ranks[1].told, job.ranks[1].exit_status = "", 0
    assert doctor.diagnose(job) is None


def test_a_mismatch_of_one_rank_blames_it_although_all_raise() -> None:
    job = failed("MismatchError: ranks disagree on the shape", *["abc"] * 3)
    for rank in job.ranks.values():
        rank.records[-1] = dataclasses.replace(
            rank.records[-1],
            state="failed",
            error="Mismatch",
            shape=(3 if rank.rank == 1 else 2,),
        )
    verdict = doctor.diagnose(job)
    assert verdict is not None
    assert (verdict.rank, verdict.cause) == (1, Cause.MISMATCH)


@pytest.mark.parametrize("lines", [(3, 3), (3, 4)])
def test_a_mismatch_of_two_ranks_blames_none(lines: tuple[int, int]) -> None:
    text = "MismatchError: ranks disagree on the shape"
    job = failed(text, "abc", "abc")
    for rank, line in zip(job.ranks.values(), lines, strict=True):
        rank.records[-1] = dataclasses.replace(
            rank.records[-1], error="Mismatch", shape=(2 + rank.rank,)
        )
        rank.error = (Frame("/home/me/train.py", line),)
    verdict = doctor.diagnose(job)
    assert verdict is not None
    assert (verdict.rank, verdict.cause) == (None, Cause.MISMATCH)
    if lines == (3, 3):  # the error says it better
        assert verdict.sentence.startswith("all ranks raised MismatchError")
    else:
        for rank, line in enumerate(lines):
            assert f"[{2 + rank}] at /home/me/train.py:{line}" in (
                verdict.sentence
            )


def test_the_programs_error_on_all_ranks_is_named_with_its_line() -> None:
    job = failed("ValueError: odd", "abc", "abc")
    for rank in job.ranks.values():
        rank.error = (Frame("/home/me/train.py", 31),)
        rank.epoch, rank.batch = 1, 4
    verdict = doctor.diagnose(job)
    assert verdict is not None
    assert verdict.rank is None
    assert verdict.sentence == (
        "all ranks raised ValueError at /home/me/train.py:31, in batch 4 of "
        "epoch 1: odd"
    )


def test_ranks_without_records_have_a_verdict() -> None:
    job = Job(2, {n: Rank(n, exit_status=9) for n in range(2)})
    verdict = doctor.diagnose(job)
    assert verdict is not None
    assert verdict.sentence == "all ranks exited with code 9"
    job.ranks[0].exit_status = 0
    verdict = doctor.diagnose(job)
    assert verdict is not None
    assert verdict.sentence == "rank 1 exited with code 9"


def test_a_rank_that_was_killed_is_placed_by_another() -> None:
    killed = Rank(1, exit_status=137, signal="SIGKILL")
    other = Rank(0, has_record=True, epoch=2, batch=5)
    verdict = doctor.diagnose(Job(2, {0: other, 1: killed}))
    assert verdict is not None
    assert verdict.sentence == (
        "rank 1 was killed by SIGKILL; rank 0 was in batch 5 of epoch 2"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adam/bucket_0", "the sum of the gradients"),
        ("shard", "`hvd.shard`"),
        ("fit/order/epoch", "`fit`"),
        ("SyncEarlyStopping/epoch", "the check between epochs of `fit`"),
        ("SyncEarlyStopping", "the check behind a batch of `fit`"),
        ("hvd_keras.init.without_gpus", "a call of hvd_keras"),
        ("my loss", "'my loss'"),
        ("loss.3", "'loss.3'"),
        ("grouped_allreduce.12", "`hvd.grouped_allreduce`"),
        (
            "torch.broadcast.0",
            "`hvd.broadcast` or `hvd.broadcast_parameters`",
        ),
        ("torch.allreduce.3", "`hvd.allreduce`"),
        ("jax.allreduce.program.0", "`hvd_keras.jax.allreduce`"),
        ("jax.broadcast.call.round_1.3", "`hvd_keras.jax.broadcast`"),
        ("gradients/order", "the first step of the optimizer"),
        ("gradients", "'gradients'"),  # a name of the user's
        ("Model.save/places", "`model.save`"),
    ],
)
def test_calls_are_named_in_the_users_words(name: str, words: str) -> None:
    assert words_of(Record(1, "allreduce", name)) == words


def slow(num_calls: int, seconds: float) -> Job:
    """A job whose rank 1 comes so late to each of its calls."""
    waits = [
        Record(
            step,
            "allreduce",
            "loss",
            enqueued=step * seconds,
            begun=(step + 0.8) * seconds,
            ended=(step + 0.9) * seconds,
            last_rank=1,
            late=0.8 * seconds,
        )
        for step in range(1, num_calls + 1)
    ]
    late = [dataclasses.replace(one, enqueued=one.begun) for one in waits]
    end = waits[-1].ended
    rows = enumerate((waits, late))
    return Job(
        2,
        {
            number: Rank(number, written=end, has_record=True, records=records)
            for number, records in rows
        },
    )


@pytest.mark.parametrize(
    ("num_calls", "seconds", "is_named"),
    [(7, 0.5, False), (60, 0.002, False), (60, 0.2, True)],
)
def test_after_an_error_a_slow_rank_takes_more_evidence(
    num_calls: int, seconds: float, is_named: bool
) -> None:
    job = slow(num_calls, seconds)
    assert doctor.diagnose(job) is not None  # as long as it runs
    for rank in job.ranks.values():
        rank.told, rank.exit_status = "StalledError: a call", 1
    assert (doctor.diagnose(job) is not None) == is_named


def test_a_slow_job_that_is_interrupted_has_no_verdict() -> None:
    job = slow(60, 0.2)
    job.was_interrupted = True
    assert doctor.diagnose(job) is None


def test_a_rank_that_ends_before_a_call_of_another_is_named() -> None:
    job = ranks("abx", "abx", "ab.")
    job.ranks[2].records.pop()
    job.leavers = [2]  # it has not ended yet
    verdict = doctor.diagnose(job)
    assert verdict is not None
    assert (verdict.rank, verdict.cause) == (2, Cause.SKIPPED)
    assert verdict.sentence.startswith(
        "rank 2 (pid 102) ended its script while ranks 0, 1 waited in "
        "allreduce 'x': make that call on all ranks, equally often, not under "
        "`if hvd.rank() == 0`; rank 2 finished 'b' at "
    )
    job.ranks[2].exit_status = 0
    assert doctor.diagnose(job) == verdict
