"""A lost or late rank raises errors that TensorFlow's users expect.

Both `except` with our class and `except` with TensorFlow's class catch the
error. `test_faults.py` tests times and texts of the engine's errors, and
`test_fit_faults.py` tests `fit`.
"""

from __future__ import annotations

import jobs
import pytest
from selection import thorough_except

_PRELUDE = """
    import os, signal, time
    import tensorflow as tf
    import hvd_keras as hvd

    hvd.init()

    def eager():
        for i in range(5):
            if i == 3 and hvd.rank() == 1:
                fail()
            hvd.allreduce(tf.ones([10]), name="step")

    def function():
        step = tf.function(lambda x: hvd.allreduce(x, name="step"))
        for i in range(5):
            if i == 3 and hvd.rank() == 1:
                fail()
            step(tf.ones([10]))

    def session():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            step = hvd.allreduce(tf.ones([10]), name="step")
            for i in range(5):
                if i == 3 and hvd.rank() == 1:
                    fail()
                session.run(step)

    def report(train, ours, theirs):
        try:
            train()
        except ours as error:
            assert isinstance(error, theirs), type(error).__mro__
            assert isinstance(error, hvd.HvdError)
            assert "rank 1" in str(error), str(error)
            print("caught", type(error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    "train", thorough_except(["eager", "function", "session"], "function")
)
def test_a_lost_rank_raises_our_class_and_tensorflows(train: str) -> None:
    job = jobs.run_python(
        2,
        f"""{_PRELUDE}
    def fail():
        os.kill(os.getpid(), signal.SIGKILL)

    report({train}, hvd.PeerLostError, tf.errors.UnavailableError)
    """,
        seconds=90,
    )
    assert "caught PeerLostError" in job.lines(0), job.stdout + job.stderr
    assert job.status == 137


@pytest.mark.parametrize(
    "train", thorough_except(["eager", "function"], "function")
)
def test_a_late_rank_raises_our_class_and_tensorflows(train: str) -> None:
    job = jobs.run_python(
        2,
        f"""{_PRELUDE}
    def fail():
        time.sleep(3)
        os._exit(0)

    report({train}, hvd.StalledError, tf.errors.DeadlineExceededError)
    """,
        seconds=90,
        HVD_STALL_CHECK_TIME_SECONDS="0.5",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="2",
    )
    assert "caught StalledError" in job.lines(0), job.stdout + job.stderr
    assert "rank 1 has not come" in job.stdout + job.stderr
