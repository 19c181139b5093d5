"""Hvdrun's last lines name files that several ranks have written."""

from __future__ import annotations

import sys
from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("numpy as np", "np.savez({!r}, np.ones(3))"),
        ("torch", "torch.save([1], {!r})"),
        (
            "tensorflow as tf",
            "[tf.io.write_file(n, 'words') for n in ('ram://own_/1', {!r})]",
        ),
    ],
    ids=["numpy", "torch", "tensorflow"],
)
def test_a_file_that_several_ranks_write(
    tmp_path: Path, module: str, call: str, is_guarded: bool
) -> None:
    guard = "if hvd.rank() == 0: " if is_guarded else ""
    program, written = tmp_path / "train.py", str(tmp_path / "weights.npz")
    program.write_text(
        f"import {module}\nimport hvd_keras as hvd\nhvd.init()\n"
        f"open(f'{tmp_path}/own_{{hvd.rank()}}', 'w').close()\n"
        f"{guard}{call.format(written)}\n"
        f"open(f'{tmp_path}/common.log', 'a').close()\n"
    )
    job = jobs.run("-np", "2", "--", sys.executable, str(program))
    assert job.status == 0, job.stderr
    said = f"warning of ranks 0, 1: Each has written {written!r} at {program}:5"
    assert (said in job.stderr) != is_guarded, job.stderr
    assert "own_" not in job.stderr


@pytest.mark.parametrize(
    "line", ["epoch {i}", "epoch {i}: {hvd.rank()}"], ids=["same", "own"]
)
def test_lines_that_several_ranks_append(tmp_path: Path, line: str) -> None:
    program, log = tmp_path / "train.py", tmp_path / "train.log"
    log.write_text("old\nold\n")
    program.write_text(
        "import hvd_keras as hvd\nhvd.init()\nfor i in range(5):\n"
        f"    with open({str(log)!r}, 'a') as f:\n"
        f"        f.write(f'{line}\\n')\n"
        "hvd.barrier()\n"
    )
    job = jobs.run("-np", "2", "--", sys.executable, str(program))
    assert job.status == 0, job.stderr
    said = f"warning of ranks 0, 1: Each has appended to {str(log)!r} at "
    assert (said in job.stderr) == (line == "epoch {i}"), job.stderr


def test_files_that_are_named_by_the_time(tmp_path: Path) -> None:
    code = f"""
        import datetime, os, time
        import h5py
        import hvd_keras as hvd
        import tensorflow as tf
        from hvd_keras._common import files
        hvd.init()
        time.sleep(0.2 * hvd.rank())
        with files.replacing(f"{tmp_path}/{{time.time()}}.keras") as path:
            open(path, "w").close()
        open(f"{tmp_path}/{{time.strftime('%Y%m%d-%H%M%S')}}.txt", "w").close()
        h5py.File(f"{tmp_path}/{{time.time()}}.h5", "w").close()
        tf.summary.create_file_writer(f"{tmp_path}/{{time.time()}}/train")
        now = datetime.datetime.now()
        open(f"{tmp_path}/{{now:%H%M%S.%f}}.log", "w").close()
        for name in (hvd.rank(), os.getpid(), 20240101 + hvd.rank()):
            open(f"{tmp_path}/own_{{name}}", "w").close()
        with files.replacing(f"{tmp_path}/same.keras") as path:
            open(path, "w").close()
        """
    job = jobs.run_python(2, code)
    assert job.status == 0, job.stderr
    said = [
        line for line in jobs.last_words(job) if "with another time" in line
    ]
    assert len(said) == 5, job.stderr
    assert all("hvd.broadcast_object(name)" in line for line in said)
    assert "own_" not in job.stderr
    assert "same.keras" not in job.stderr
