"""A rank of an elastic job: sums ones until it is told the end.

It tells each generation on its standard output. The file END makes all ranks
end.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import hvd_keras as hvd
from hvd_keras import _core
from hvd_keras._job import membership, state
from hvd_keras.exceptions import JobError


def tell(began: float) -> None:
    """Tells the place of this process, and how long it took to get it."""
    place = f"{hvd.rank()}/{hvd.size()} local {hvd.local_rank()}"
    now = time.monotonic()
    milliseconds = (now - began) * 1e3
    print(
        f"generation {state.generation()} rank {place} pid {os.getpid()} after "
        f"{milliseconds:.0f} ms at {now:.4f}",
        flush=True,
    )


def main(end: str) -> None:
    """Joins the job and stays in it until the file `end` is there."""
    hvd.init()
    membership.announce_elastic()
    if membership.is_waiting():
        assert hvd.rank() > 0
        membership.rejoin()
    began = time.monotonic()
    is_new = True
    while True:
        flags = [1.0, membership.is_change_due(), os.path.exists(end)]
        try:
            sums = _core.allreduce("x", [np.array(flags)], 1)[0]
            assert sums[0] == hvd.size(), sums
            if is_new:
                is_new = False
                tell(began)
            if sums[2]:
                break
            if sums[1]:
                began = time.monotonic()
                is_new = True
                if membership.must_leave():
                    membership.announce_leave("it was told to")
                    break
                membership.rejoin()
        except JobError as error:
            print(f"lost: {error}", flush=True)
            began = time.monotonic()
            is_new = True
            membership.rejoin()
        time.sleep(0.002)
    hvd.shutdown()
    print("end", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
