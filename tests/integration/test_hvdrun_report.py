"""`hvdrun --report` records a job and writes its page."""

from __future__ import annotations

import json
import pathlib
import re
import sys
import time

import jobs
import pytest

_RANK = pathlib.Path(__file__).with_name("report_rank.py")


def test_a_job_gets_a_report_and_leaves_nothing_else(
    tmp_path: pathlib.Path,
) -> None:
    page, temporary = tmp_path / "report.html", tmp_path / "temporary"
    temporary.mkdir()
    job = jobs.run(
        "-np", "2", "--report", str(page), "--", sys.executable, str(_RANK),
        environ=jobs.clean_environ(TMPDIR=str(temporary)),
    )  # fmt: skip
    assert job.status == 0, job.stderr
    assert f"hvdrun: hvd-report: wrote {page}" in job.stderr
    assert list(temporary.glob("hvdrun-report-*")) == []

    text = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert text is not None
    data = json.loads(text[1])
    assert (data["summary"]["size"], data["summary"]["num_steps"]) == (2, 30)
    (advice,) = [one for one in data["advice"] if one["rule"] == "late_rank"]
    assert advice["text"].startswith("Rank 1 (host ")
    assert "its input is slow" in advice["text"]


def test_a_report_of_several_hosts_needs_a_shared_folder() -> None:
    job = jobs.run("-H", "a:1,b:1", "--report", "x.html", "--", "true")
    assert job.status == 2
    assert "`--report` must come with `--timeline DIR`" in job.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--report", "page.html"),
        ("--verify",),
        ("--report", "page.html", "--min-np", "1"),
    ],
)
def test_nothing_stays_of_a_killed_hvdrun(
    options: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    code = """
        import time
        import hvd_keras as hvd
        hvd.init()
        print("up", flush=True)
        time.sleep(60)
        """
    job = jobs.start(
        "-np", "2", *options, "--", *jobs.python(code),
        environ=jobs.clean_environ(TMPDIR=str(tmp_path)),
    )  # fmt: skip
    assert job.stdout is not None
    while "up" not in job.stdout.readline():
        time.sleep(0.01)
    assert list(tmp_path.glob("hvdrun-*"))
    job.kill()
    jobs.finish(job)
    jobs.wait_for(lambda: not list(tmp_path.iterdir()))


def test_a_killed_hvdrun_undoes_what_the_script_did(
    tmp_path: pathlib.Path,
) -> None:
    temporary, model = tmp_path / "temporary", tmp_path / "model"
    temporary.mkdir()
    model.write_text("trained")
    code = f"""
        import time
        import hvd_keras as hvd
        hvd.init()
        for name in {str(model)!r}, {str(tmp_path / "new")!r}:
            with open(name, "w") as file:
                file.write("of the comparison")
        hvd.barrier()
        print("up", flush=True)
        time.sleep(60)
        """
    job = jobs.start(
        "-np", "2", "--verify", "--", *jobs.python(code),
        environ=jobs.clean_environ(TMPDIR=str(temporary)),
    )  # fmt: skip
    assert job.stdout is not None
    while "up" not in job.stdout.readline():
        time.sleep(0.01)
    assert model.read_text() == "of the comparison"
    job.kill()
    jobs.finish(job)
    jobs.wait_for(lambda: not list(temporary.iterdir()))
    assert model.read_text() == "trained"
    assert not (tmp_path / "new").exists()
