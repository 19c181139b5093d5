"""One rank of a job in which a rank fails; test_faults.py runs it.

It does without TensorFlow, so that a job takes a fraction of a second. Every
rank writes what it saw, and the time on the monotonic clock, to its own file in
the given directory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np

import hvd_keras as hvd
from hvd_keras import _core

LARGE = np.ones(4 << 20, np.float32)  # 16 MB: milliseconds, not microseconds
SMALL = np.ones(8, np.float32)


def note(args: argparse.Namespace, **facts: object) -> None:
    """Adds a line to this rank's file, even if the rank dies right after."""
    path = pathlib.Path(args.dir) / f"rank.{hvd.rank()}"
    line = json.dumps({"time": time.monotonic(), **facts}) + "\n"
    with path.open("a") as file:
        file.write(line)
        file.flush()


def go(args: argparse.Namespace) -> None:
    """Ends or stops this rank as `args.how` says."""
    note(args, event="gone")
    if args.how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif args.how == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif args.how == "os_exit":
        os._exit(5)
    elif args.how == "exception":
        raise ValueError("boom on purpose")
    elif args.how == "sys_exit":
        sys.exit(0)
    elif args.how == "shutdown":
        hvd.shutdown()
        time.sleep(1.5)  # peers must learn within 1 s, before this rank ends


def fail(args: argparse.Namespace, name: str, array: np.ndarray) -> None:
    """Runs allreduces until one raises, and notes the error."""
    begin = time.monotonic()
    while time.monotonic() - begin < 30:
        try:
            _core.allreduce(name, [array], 1)
        except hvd.HvdError as error:
            note(args, event=name, type=type(error).__name__, text=str(error))
            return
    note(args, event=name, type="none", text="nothing was raised")


def before_the_first(args: argparse.Namespace, victim: bool) -> None:
    if victim:
        go(args)
    fail(args, "first", SMALL)


def while_others_wait(args: argparse.Namespace, victim: bool) -> None:
    _core.allreduce("together", [SMALL], 1)
    if victim:
        time.sleep(0.5)
        go(args)
    fail(args, "waiting", SMALL)


def mid_allreduce(args: argparse.Namespace, victim: bool) -> None:
    if victim:
        threading.Timer(0.4, go, (args,)).start()
        with contextlib.suppress(hvd.HvdError):
            while True:
                _core.allreduce("large", [LARGE], 1)
    fail(args, "large", LARGE)


def does_not_come(args: argparse.Namespace, victim: bool) -> None:
    """The victim is alive but busy; it comes later, and the job goes on."""
    if victim:
        note(args, event="gone")
        time.sleep(2.0)
    else:
        fail(args, "absent", SMALL)
    result = _core.allreduce("later", [SMALL], 1)[0]
    note(args, event="later", type="value", text=str(float(result[0])))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--when", required=True)
    parser.add_argument("--how", default="")
    parser.add_argument("--victim", type=int, required=True)
    args = parser.parse_args()
    hvd.init()
    scenario = {
        "before_the_first": before_the_first,
        "while_others_wait": while_others_wait,
        "mid_allreduce": mid_allreduce,
        "does_not_come": does_not_come,
    }[args.when]
    scenario(args, hvd.rank() == args.victim)
    if args.when != "does_not_come":
        fail(args, "afterwards", SMALL)
    hvd.shutdown()


if __name__ == "__main__":
    main()
