"""Ctrl-C in a blocked collective is answered at once."""

from __future__ import annotations

import signal
import time

import jobs
import pytest

# The other rank does not come until it hears of the interrupt.
_BLOCKED = """
import os, signal, threading, time
import numpy as np
import hvd_keras as hvd
from hvd_keras import _core
calls = {
    "allreduce": lambda: _core.allreduce("x", [np.ones(3)], 1),
    "allgather": lambda: _core.allgather("x", [np.ones(3)]),
    "alltoall": lambda: _core.alltoall("x", np.ones(2), None),
    "barrier": lambda: _core.barrier("x"),
}
hvd.init()
"""


@pytest.mark.timed
@pytest.mark.parametrize(
    "call", ["allreduce", "allgather", "alltoall", "barrier"]
)
def test_one_rank_is_interrupted_and_goes_on(call: str) -> None:
    job = jobs.run_python(
        2,
        _BLOCKED
        + f"""
call = calls["{call}"]
if hvd.rank() == 0:
    def interrupt():
        time.sleep(0.3)
        interrupt.at = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        call()
    except KeyboardInterrupt:
        print(time.monotonic() - interrupt.at < 0.5)
    _core.barrier("now")  # then rank 1 comes, and finds rank 0's call
    _core.barrier("end")
else:
    _core.barrier("now")
    call()
    _core.barrier("end")
""",
    )
    assert job.status == 0, job.stderr
    assert job.lines(0) == ["True"]


@pytest.mark.timed
def test_interrupt_ends_a_job_whose_ranks_wait_for_each_other() -> None:
    code = (
        _BLOCKED
        + """
print("ready", flush=True)
_core.barrier(f"of rank {hvd.rank()}")
"""
    )
    job = jobs.start("-np", "2", "--", *jobs.python(code))
    assert job.stdout is not None
    for _ in range(2):
        assert "ready" in job.stdout.readline()
    time.sleep(0.3)
    job.send_signal(signal.SIGINT)
    outcome = jobs.finish(job)
    assert outcome.status == 128 + signal.SIGINT, outcome.stderr
    assert outcome.seconds < 3
    assert outcome.stderr.splitlines()[-1] == "hvdrun: interrupted"
    for word in ("verdict", "failed first", "rank  pid"):
        assert word not in outcome.stderr
    # The user's own line: the stack of rank 0, a line of others.
    lines = outcome.stderr.splitlines()
    assert sum("Traceback" in line for line in lines) == 1
    assert sum("interrupts.py" in line for line in lines) == 0
    assert "[0] KeyboardInterrupt" in lines
    assert any(x.startswith("[1] KeyboardInterrupt at <str") for x in lines)


@pytest.mark.timed
def test_tensorflow_function_that_waits_is_interrupted() -> None:
    job = jobs.run_python(
        2,
        """
        import os, signal, threading, time
        import tensorflow as tf
        import hvd_keras as hvd

        def interrupt():
            time.sleep(0.5)
            interrupt.at = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)

        hvd.init()
        step = tf.function(lambda x: hvd.allreduce(x, name="x"))
        if hvd.rank() == 0:
            threading.Thread(target=interrupt).start()
            try:
                step(tf.ones(3))
            except KeyboardInterrupt:
                print(time.monotonic() - interrupt.at < 0.5)
                raise
        else:
            hvd.barrier()
        """,
        seconds=60,
    )
    assert job.lines(0) == ["True"], job.stderr
    assert job.status == 128 + signal.SIGINT
    assert job.table()[0][2] == "KeyboardInterrupt"
    # What TensorFlow prints when it starts comes once.
    assert job.stderr.count("oneDNN custom operations are on") <= 1
