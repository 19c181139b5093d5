"""`hvdrun --status` shows how the ranks are doing."""

from __future__ import annotations

import jobs

CODE = """
    import sys, time
    import numpy as np
    import hvd_keras as hvd
    from hvd_keras import _core

    hvd.init()
    end = time.monotonic() + 4
    while True:
        if hvd.rank() == 1:
            time.sleep(0.1)
        done = np.array([time.monotonic() > end], np.float32)
        (late,) = _core.allreduce("adam/bucket_0", [done], 1)
        if late[0]:
            break
    print("all of it", file=sys.stderr)
    """


def test_the_table_shows_steps_and_who_waits() -> None:
    job = jobs.run_python(2, CODE, "--status", "--status-seconds", "1.5")
    lines = job.stderr.splitlines()
    at = max(i for i, line in enumerate(lines) if "status at" in line)
    header, first, second = (line.split() for line in lines[at + 1 : at + 4])
    assert header[:5] == ["rank", "host", "step", "steps/s", "waits"]
    for rank, row in enumerate((first, second)):
        assert row[:2] == [str(rank), "-"]
        assert 5 < int(row[2]) < 50
        assert 1.0 < float(row[3]) < 11.0
    assert int(first[4].rstrip("%")) > 50 > int(second[4].rstrip("%"))
    assert job.stderr.count("all of it") == 2


def test_a_job_of_one_rank_has_a_table_too() -> None:
    job = jobs.run_python(1, CODE, "--status", "--status-seconds", "1.5")
    last = job.stderr.rpartition("status at")[2].splitlines()
    assert last[2].split()[:2] == ["0", "-"]
    assert int(last[2].split()[2]) > 5


def test_members_of_an_elastic_job_tell_under_their_numbers() -> None:
    code = f"""
    import os, signal
    if os.environ["HVD_MEMBER"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    {CODE}
    """
    options = ["--min-np", "2", "--restart-delay", "0"]
    job = jobs.run_python(
        2, code, *options, "--status", "--status-seconds", "1.5"
    )
    # On a busy machine a table may come before a member has told anything.
    steps = {}
    for table in job.stderr.split("status at")[1:]:
        for line in table.splitlines()[2:4]:
            if line.split()[0].isdigit():
                member, _host, step = line.split()[:3]
                steps[member] = step
    assert steps.keys() == {"1", "2"}
    assert all(int(step) > 5 for step in steps.values())
