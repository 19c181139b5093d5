"""A rank that calls collectives until one fails; notes what happens."""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

import hvd_keras as hvd
from hvd_keras import _native

_FOLDER = sys.argv[1]
_RANK = os.environ.get("HVD_RANK") or os.environ["RANK"]


def _note(kind: str, **more: str | float) -> None:
    line = json.dumps({"kind": kind, "time": time.time(), **more})
    with open(f"{_FOLDER}/rank{_RANK}", "a") as file:
        file.write(line + "\n")


def _work() -> None:
    hvd.init(process_sets="dynamic")
    core, size = _native.core(), hvd.size()
    members = [0, size - 1] if size < 4 else [1, 2]
    process_set = hvd.add_process_set(members)
    _note("up")
    small, large = np.ones(4, np.float32), np.ones(4 << 20, np.float32)
    for step in range(1_000_000):
        core.allreduce(f"small{step % 7}", [small], int(hvd.Sum))
        if step % 5 == 0:
            core.allreduce(
                "large", [large], int(hvd.Sum),
                wire_format=int(os.environ.get("WIRE_FORMAT", "0")),
            )  # fmt: skip
        if hvd.rank() in members:
            core.allreduce(
                "set", [small], int(hvd.Sum),
                process_set_id=process_set.process_set_id,
            )  # fmt: skip
        hvd.broadcast_object({"step": step}, step % size, name="object")
        if step == 2:
            _note("works")


def _meet_again() -> None:
    """Makes a new job of the ranks that are left."""
    left = os.environ["AGAIN_RANKS"].split(",")
    by_host = [os.environ["AGAIN_HOSTS"].split(",")[int(r)] for r in left]
    own = left.index(_RANK)
    host = by_host[own]
    os.environ["RANK"] = str(own)
    os.environ["WORLD_SIZE"] = str(len(left))
    os.environ["LOCAL_RANK"] = str(by_host[:own].count(host))
    os.environ["LOCAL_WORLD_SIZE"] = str(by_host.count(host))
    os.environ["MASTER_PORT"] = os.environ["AGAIN_PORT"]
    hvd.init()
    one = np.ones(1, np.float32)
    (total,) = _native.core().allreduce("again", [one], int(hvd.Sum))
    _note("meets again", total=float(total[0]))
    hvd.shutdown()


_note("starts")
try:
    _work()
except hvd.HvdError as error:
    _note("fails", error=type(error).__name__, text=str(error))
    hvd.shutdown()
    if _RANK in os.environ.get("AGAIN_RANKS", "").split(","):
        _meet_again()
    raise
