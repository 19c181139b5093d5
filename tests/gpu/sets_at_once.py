"""A rank that uses all ranks' process set and another one from two threads."""

from __future__ import annotations

import argparse
import os
import threading

import numpy as np
from calls import run
from devices import Device, open_device, prepare_to_share

import hvd_keras as hvd


def use(device: Device, process_set: hvd.ProcessSet, num_calls: int) -> None:
    ones = [np.ones((500,))] * 2
    for i in range(num_calls):
        outputs = run(
            device,
            "allreduce",
            f"s{i % 50}",
            ones,
            op=int(hvd.Sum),
            process_set_id=process_set.process_set_id,
        )
        for output in outputs:
            np.testing.assert_array_equal(output, process_set.size())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=10_000)
    chosen = parser.parse_args()
    prepare_to_share(os.environ)
    size = int(os.environ["HVD_SIZE"])
    part = hvd.ProcessSet(range(max(1, size - 1)))
    hvd.init(process_sets=[part] if size > 1 else None)
    device = open_device(hvd.local_rank())
    if device is None:
        print("no GPU here")
        return
    used = [hvd.global_process_set]
    if size > 1 and part.included():
        used.append(part)
    failures: list[BaseException] = []

    def use_one(one: hvd.ProcessSet) -> None:
        try:
            use(device, one, chosen.calls)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use_one, args=(one,)) for one in used]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    hvd.shutdown()
    print("both sets have ended", flush=True)


if __name__ == "__main__":
    main()
