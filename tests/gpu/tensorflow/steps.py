"""A rank that multiplies matrices and sums them, many times: a race between
TensorFlow's stream and ours would show as a wrong sum.

`make gpu-first-hour` runs it in many ways. `--device CPU` needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.exceptions import HvdError


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="GPU")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--int32", action="store_true")
    parser.add_argument("--empty-first", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--own-set", action="store_true")
    parser.add_argument("--fault", choices=("stop", "kill"))
    return parser.parse_args()


def wrong_by(x: tf.Tensor, process_set: hvd.ProcessSet) -> tf.Tensor:
    product = tf.matmul(x, x)
    total = hvd.allreduce(
        product, op=hvd.Sum, name="y", process_set=process_set
    )
    size = tf.cast(process_set.size(), total.dtype)
    return tf.reduce_max(tf.abs(total - size * product))


def break_down(fault: str) -> None:
    """Stops this process for 5 s, or kills it."""
    pid = os.getpid()
    if fault == "kill":
        os.kill(pid, signal.SIGKILL)
    wake = f"sleep 5; kill -CONT {pid}"
    with subprocess.Popen(["sh", "-c", wake]):
        os.kill(pid, signal.SIGSTOP)


def run(chosen: argparse.Namespace, sets: list[hvd.ProcessSet]) -> None:
    dtype = tf.int32 if chosen.int32 else tf.float32
    x = tf.random.stateless_uniform(
        [chosen.size] * 2, (1, 2), maxval=4, dtype=tf.int32
    )
    x = tf.cast(x, dtype)  # whole numbers: all sums are exact
    compiled = tf.function(wrong_by, jit_compile=chosen.jit or None)
    bodies = [compiled] if chosen.jit else [wrong_by, compiled]
    begin = time.monotonic()
    for body in bodies:
        for step in range(chosen.steps):
            if chosen.fault and step == 20 and hvd.rank() == hvd.size() - 1:
                break_down(chosen.fault)
            for process_set in sets:
                worst = float(body(x, process_set))
                assert worst == 0.0, (step, worst)
    seconds = time.monotonic() - begin
    each = seconds * 1e3 / (chosen.steps * len(bodies) * len(sets))
    print(f"all sums are right; {each:.2f} ms a step", flush=True)


def main() -> None:
    chosen = options()
    sets = [hvd.ProcessSet([0])] if chosen.own_set else []
    hvd.init(process_sets=sets)
    found = tf.config.list_physical_devices(chosen.device)
    if not found:
        print("no GPU here")
        return
    if chosen.growth:
        tf.config.experimental.set_memory_growth(found[0], True)
    with tf.device(f"{chosen.device}:0"):
        if chosen.empty_first:
            hvd.allreduce(tf.zeros([0]), name="empty")
        mine = [one for one in sets if one.included()]
        begin = time.monotonic()
        try:
            run(chosen, [hvd.global_process_set, *mine])
        except (HvdError, tf.errors.OpError) as error:
            if chosen.fault != "kill":
                raise
            seconds = time.monotonic() - begin
            print(f"survived after {seconds:.1f} s: {error}", flush=True)
            hvd.shutdown()
            os._exit(0)
    if chosen.fault == "kill":
        sys.exit("nobody was killed")
    hvd.shutdown()


if __name__ == "__main__":
    main()
