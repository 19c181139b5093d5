"""A rank of an elastic job on GPUs whose rank 0 dies: see test_gpu_suite.py.

The others connect their GPUs anew, without it and then with its successor.
"""

from __future__ import annotations

import os
import signal

import numpy as np
from calls import run
from devices import open_device, prepare_to_share

import hvd_keras as hvd
from hvd_keras import _core
from hvd_keras._job import membership
from hvd_keras.exceptions import PeerLostError


def main() -> None:
    """Sums on the GPUs of 3, 2 and 3 ranks."""
    prepare_to_share(os.environ)
    hvd.init()
    membership.announce_elastic()
    assert hvd.local_rank() == 0 or not membership.is_waiting()  # as the killed
    device = open_device(hvd.local_rank())
    assert device is not None
    is_newcomer = os.environ["HVD_MEMBER"] == "3"
    num_epochs = 1 if is_newcomer else 3
    assert is_newcomer == membership.is_waiting()
    if is_newcomer:
        membership.rejoin()
    for epoch in range(num_epochs):
        ones = [np.ones((20_000,))] * 3
        (output, *_) = run(device, "allreduce", "x", ones, op=int(hvd.Sum))
        np.testing.assert_array_equal(output, hvd.size())
        print(f"summed on {hvd.size()}", flush=True)
        if epoch == num_epochs - 1:
            break
        if epoch == 0 and hvd.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        is_due = 0.0
        try:
            while not is_due:
                due = np.array([float(membership.is_change_due())])
                is_due = _core.allreduce("due", [due], 1)[0][0]
        except PeerLostError:
            assert epoch == 0
        membership.rejoin()
    hvd.shutdown()


main()
