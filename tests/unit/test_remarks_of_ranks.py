"""Which remarks of ranks hvdrun's user reads."""

from __future__ import annotations

from hvd_keras._common.remarks import Remark
from hvd_keras._rendezvous.protocol import Report, ReportKind
from hvd_keras.run.job.remarks_of_ranks import RemarksOfRanks


def told(rank: int, about: str, text: str, fewest: int = 1) -> Report:
    remark = Remark(about, text, fewest)
    return Report(ReportKind.REMARKS, rank, remark.packed())


def test_the_first_text_counts_and_all_ranks_are_named() -> None:
    remarks = RemarksOfRanks()
    assert not remarks
    for rank in (2, 0, 1):
        remarks.note(told(rank, "data", f"text of {rank}"))
    assert remarks
    assert list(remarks.lines()) == ["warning of ranks 0, 1, 2: text of 2"]


def test_one_rank_may_have_the_text_of_several() -> None:
    for order in ((0, 1), (1, 0)):
        remarks = RemarksOfRanks()
        for rank in order:
            text = "what it saw" if rank else ""
            remarks.note(told(rank, "file", text, fewest=2))
            remarks.note(told(rank, "seen by none", "", fewest=2))
        assert list(remarks.lines()) == ["warning of ranks 0, 1: what it saw"]


def test_some_count_only_if_several_ranks_say_them() -> None:
    remarks = RemarksOfRanks()
    for rank in range(30):
        remarks.note(told(rank, f"file {rank}", "its own", fewest=2))
    assert not remarks
    remarks.note(told(0, "alone", "says one"))
    for rank in (5, 9):
        remarks.note(told(rank, "file", "the same", fewest=2))
    assert list(remarks.lines()) == [
        "warning of rank 0: says one",
        "warning of ranks 5, 9: the same",
    ]
