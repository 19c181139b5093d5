"""The timelines of two hosts have one clock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from network import ADDRESSES, Network, finish, free_port, python

from hvd_keras._observe import recording, trace, tracks
from hvd_keras._observe.recording import PHASES

# Host 1 booted so much earlier: its clock shows more.
_SHIFT_SECONDS = 1000
_REDUCE = """
    import numpy as np
    import hvd_keras as hvd
    from hvd_keras import _native
    hvd.init()
    for i in range(20):
        _native.core().allreduce("small", [np.ones(4)], 1)
    _native.core().allreduce("large", [np.ones(1 << 18)], 1)
    hvd.shutdown()
"""


def _shifted(command: list[str]) -> list[str]:
    """Returns the command with another monotonic clock."""
    unshare = ["unshare", "--time", f"--monotonic={_SHIFT_SECONDS}"]
    unshare += ["--fork", "--kill-child"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], capture_output=True).returncode
    ):
        pytest.skip("needs time namespaces")
    return [*unshare, *command]


def test_clocks_of_hosts_are_aligned(
    network: Network, secret: str, tmp_path: Path
) -> None:
    def hvdrun(host: int, num_ranks: int) -> list[str]:
        return [
            sys.executable, "-m", "hvd_keras.run", "--nnodes", "2",
            "--node-rank", str(host), "--rdzv-endpoint", endpoint,
            "-np", str(num_ranks), "--", *python(_REDUCE),
        ]  # fmt: skip

    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    extra = {"HVD_SECRET_FILE": secret, "HVD_TIMELINE": str(tmp_path)}
    commands = [hvdrun(0, 1), _shifted(hvdrun(1, 2))]
    jobs = [
        network.start(host, *command, **extra)
        for host, command in enumerate(commands)
    ]
    for each in jobs:
        status, _, stderr = finish(each)
        assert status == 0, stderr
    job = recording.read(tmp_path)
    first, *others = job.ranks
    assert len(others) == 2
    assert (first.clock_offset_ns, first.clock_error_ns) == (0, 0)
    for rank in others:
        assert 0 < rank.clock_error_ns < 20e6
        wrong = rank.clock_offset_ns + _SHIFT_SECONDS * 10**9
        assert abs(wrong) <= rank.clock_error_ns
        # Ranks of one host use the same readings.
        assert rank.clock_error_ns == others[0].clock_error_ns
    error = others[0].clock_error_ns
    assert all(by <= 2 * error for *_, by in tracks.early_ends(job))
    waits = [
        r.phases[r.phases["kind"] == PHASES.index("wire")] for r in job.ranks
    ]
    assert all(len(each) >= 21 for each in waits)
    ended = [rank.calls["ended_ns"][-1] for rank in job.ranks]
    assert np.ptp(ended) < 1e9  # although the clocks are far apart
    assert any("are aligned to" in line for line in trace.describe(job))


def test_without_a_reading_the_wall_clocks_count(tmp_path: Path) -> None:
    for rank, (monotonic, unix) in enumerate([(50, 1000), (7, 1003)]):
        header = {
            "version": 1, "rank": rank, "size": 2, "host": "x", "pid": 1,
            "clock": str(rank), "monotonic_ns": monotonic, "unix_ns": unix,
        }  # fmt: skip
        text = json.dumps(header).encode()
        with open(tmp_path / recording.file_name(rank), "wb") as file:
            for at in range(0, len(text), 56):
                part = text[at : at + 56]
                file.write(bytes([2, len(part), 0, 0, 0, 0, 0, 0]))
                file.write(part.ljust(56, b"\0"))
    first, second = recording.read(tmp_path).ranks
    assert first.clock_offset_ns == 0
    assert second.clock_offset_ns == (1003 - 7) - (1000 - 50)
    assert second.clock_error_ns == 10**9


def test_offsets_drift_between_readings() -> None:
    readings = np.zeros(2, recording._RECORD)
    readings["time_ns"] = [10**18, 10**18 + 10**9]
    readings["other_ns"] = [-(10**17), -(10**17) + 1000]
    readings["num_bytes"] = [30, 50]
    clock = recording._Clock(readings)
    times = 10**18 + np.array([-5, 0, 500_000_000, 10**9, 2 * 10**9])
    assert (clock.offsets(times) + 10**17).tolist() == [0, 0, 500, 1000, 1000]
    assert clock.error_ns == 50
