"""A call that a rank has left out costs no later call of that name."""

from __future__ import annotations

from pathlib import Path

import jobs

_LIMITS = {
    "HVD_STALL_CHECK_TIME_SECONDS": "1",
    "HVD_STALL_SHUTDOWN_TIME_SECONDS": "5",
}
_CODE = """
import pathlib
import time
import numpy as np
import hvd_keras as hvd

hvd.init()

def call(step):
    try:
        value = hvd.allreduce(np.array(10.0**step), hvd.Sum, name="x")
        text = f"{float(value):g}"
    except hvd.HvdError as error:
        text = type(error).__name__
    print(step, text, flush=True)

hvd.allreduce(1.0, name="start")  # TensorFlow's first op takes long
over = pathlib.Path("OVER")
if hvd.rank() == 0:
    call(0)
    over.touch()
while not over.exists():
    time.sleep(0.01)
MEET
for step in range(1, 5):
    call(step)
"""


def _values(meet: str, over: Path) -> list[list[str]]:
    """What each rank has got of its calls, in their order."""
    job = jobs.run(
        "-np",
        "2",
        "--",
        *jobs.python(_CODE.replace("MEET", meet).replace("OVER", str(over))),
        environ=jobs.clean_environ(**_LIMITS),
    )
    return [job.lines(rank) for rank in range(2)]


def test_all_go_on_together_when_they_have_met(tmp_path: Path) -> None:
    values = _values("hvd.barrier()", tmp_path / "over")
    later = [f"{step} {2 * 10**step}" for step in range(1, 5)]
    assert values[0] == ["0 StalledError", *later]
    assert values[1] == later


def test_calls_are_paired_in_their_order_otherwise(tmp_path: Path) -> None:
    """Nobody can tell which call was left out."""
    values = _values("", tmp_path / "over")
    assert values[0][0] == "0 StalledError"
    assert values[1][0] == "1 StalledError"
    assert "StalledError" not in " ".join(values[1][2:])
