"""If a rank dies in Keras's `fit`, the others' `fit` raises PeerLostError."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

_RANK = pathlib.Path(__file__).with_name("fit_fault_rank.py")


def test_fit_raises_peer_lost_when_a_rank_is_killed(tmp_path):
    command = [sys.executable, "-m", "hvd_keras.run", "-np", "3", "--"]
    command += [sys.executable, str(_RANK), "--dir", str(tmp_path)]
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    death = float((tmp_path / "death").read_text())
    for rank in (0, 2):
        facts = json.loads((tmp_path / f"rank.{rank}").read_text())
        assert facts["is_tensorflow's"]
        assert "rank 1 (pid " in facts["text"]
        assert "died" in facts["text"]
        assert "allreduce 'sgd" in facts["text"], facts["text"]
        assert facts["time"] - death < 1.0, result.stdout
    assert result.returncode == 137, result.stdout
    assert "rank 1 failed first" in result.stdout
    # The table shows our error, not "Graph execution error:".
    assert "PeerLostError: allreduce 'sgd/bucket_0': rank 1 (" in result.stdout
