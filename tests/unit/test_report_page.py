"""The report is one file that needs no other and trusts no name."""

from __future__ import annotations

import json
import pathlib
import re
import socket
from typing import Any

import pytest
from simulated_recordings import Job, slow

from hvd_keras._observe import report
from hvd_keras._observe.analysis import analyze
from hvd_keras._observe.page_data import MAX_ROWS, page_data, rank_ranges

EVIL = "</script><script>alert(1)</script><!--\u2028 'x' \"y\" &amp;"


def page_of(job: Job, folder: pathlib.Path) -> str:
    path = folder / "report.html"
    report.write_page(job.record(), path)
    return path.read_text("utf-8")


def data_in(page: str) -> dict[str, Any]:
    text = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    found: dict[str, Any] = json.loads(text[1])
    return found


def test_names_do_not_leave_the_data(tmp_path: pathlib.Path) -> None:
    page = page_of(Job(names=[EVIL, "b", "c", "d"]), tmp_path)
    assert "alert(1)</script>" not in page
    assert EVIL in [row["name"] for row in data_in(page)["tensors"]["rows"]]
    # As many scripts begin as the template has.
    template = report.render({"version": ""})
    assert page.count("<script") == template.count("<script")


def test_the_page_says_when_which_command_began(tmp_path: pathlib.Path) -> None:
    page = page_of(Job(), tmp_path)
    summary = data_in(page)["summary"]
    assert summary["command"] == "python train.py --epochs 3"
    assert summary["began_unix_s"] == 1_795_706_879  # to the second
    assert page.index('id="command"') < page.index('id="overview"')


def test_the_page_asks_the_network_for_nothing(tmp_path: pathlib.Path) -> None:
    page = page_of(Job(), tmp_path)
    assert "default-src 'none'" in page
    assert re.findall(
        r"<(?:link|img|iframe|script)[^>]*(?:src|href)=", page
    ) == ['<link rel="icon" href=']
    assert "Mike Bostock" in page  # the licence goes with the library
    assert "Observable, Inc." in page
    assert len(page) < 700_000


@pytest.mark.parametrize(
    ("size", "ranks_per_host", "kind", "num_rows"),
    [(2, 2, "rank", 2), (64, 8, "rank", 64), (512, 8, "host", 64)],
)
def test_many_ranks_share_rows(
    size: int, ranks_per_host: int, kind: str, num_rows: int
) -> None:
    job = Job(size=size, ranks_per_host=ranks_per_host, num_steps=3)
    data = page_data(analyze(job.record()))
    assert data["parts"]["kind"] == data["heat"]["kind"] == kind
    assert len(data["parts"]["groups"]) == len(data["heat"]["rows"]) == num_rows
    assert len(data["parts"]["rows"]) == size  # the table has all


def test_ranks_on_too_many_hosts_share_rows_with_their_neighbours() -> None:
    job = Job(size=130, ranks_per_host=1, num_steps=2, input_ms=slow(129, 9))
    data = page_data(analyze(job.record()))
    labels = [group["label"] for group in data["parts"]["groups"]]
    assert len(labels) <= MAX_ROWS
    assert (labels[0], labels[-1]) == ("0-2", "129-129")
    # A row shows its latest rank.
    assert data["heat"]["rows"][-1]["ms"][0] == pytest.approx(8.0)


def test_ranges_of_ranks() -> None:
    assert rank_ranges([7, 0, 1, 2]) == "0-2, 7"


def test_settings_that_ranks_do_not_share_name_their_ranks() -> None:
    record = Job(size=4).record()
    record.ranks[2].settings["cores"] = "4"
    rows = page_data(analyze(record))["settings"]
    assert [(r["value"], r["ranks"]) for r in rows if r["name"] == "cores"] == [
        ("32", "0-1, 3"),
        ("4", "2"),
    ]


def test_a_copy_is_measured_only_where_the_job_ran() -> None:
    record = Job().record()
    with pytest.raises(Exception, match="hosts a; this is"):
        report._copy_bytes_a_second(record)
    for one in record.ranks:
        one.host = socket.gethostname()
    speed = report._copy_bytes_a_second(record)
    assert 1e8 < speed < 1e12


def test_a_folder_without_a_recording_is_one_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    assert report.main([str(tmp_path), "-o", str(target)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("hvd-report: ")
    assert error.count("\n") == 1
    assert not target.exists()
