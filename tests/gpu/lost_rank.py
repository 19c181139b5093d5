"""A rank of a job on GPUs whose last rank dies: see test_gpu_suite.py.

The survivors must get the error soon, and be able to start again, alone.
"""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from calls import Call, run
from devices import open_device, prepare_to_share

import hvd_keras as hvd
from hvd_keras.exceptions import PeerLostError


def main() -> None:
    prepare_to_share(os.environ)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    device = open_device(hvd.local_rank())
    if device is None:
        print("no GPU here")
        return
    ones = [np.ones((20_000,))] * 3
    run(device, "allreduce", "warm", ones, op=int(hvd.Sum))
    # All ranks launch the next one; its kernels wait for the last rank's.
    is_victim = rank == size - 1
    delay_us = 3_000_000 if is_victim else 0
    call = Call(
        device, "allreduce", "last", ones, op=int(hvd.Sum), delay_us=delay_us
    )
    time.sleep(0.3)
    if is_victim:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(PeerLostError, match=r"'last': rank \d+ .*died"):
        call.wait()
    seconds = time.monotonic() - begin
    assert seconds < 2, seconds
    hvd.shutdown()
    for name in list(os.environ):
        if name.startswith("HVD_") and not name.endswith("_LIBRARY"):
            del os.environ[name]
    hvd.init()
    assert hvd.size() == 1
    (output, *_) = run(device, "allreduce", "again", ones, op=int(hvd.Sum))
    np.testing.assert_array_equal(output, 1.0)
    hvd.shutdown()
    print(f"rank {rank} survived {seconds:.2f} s", flush=True)


main()
