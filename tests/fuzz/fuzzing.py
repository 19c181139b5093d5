"""Cases that are the same in every run, or go on for as long as is asked for.

`HVD_FUZZ_SECONDS` lets each target run for so long, with new cases, and
`HVD_FUZZ_SEED` runs one case alone: the one whose number a failure prints.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable


def run_cases(case: Callable[[random.Random], None], count: int) -> None:
    """Runs `case` with `count` random generators of fixed seeds, or others."""
    if "HVD_FUZZ_SEED" in os.environ:
        case(random.Random(int(os.environ["HVD_FUZZ_SEED"])))
        return
    seconds = float(os.environ.get("HVD_FUZZ_SECONDS", "0"))
    end = time.monotonic() + seconds
    seed = time.time_ns() if seconds else 0
    num_run = 0
    while num_run < count or time.monotonic() < end:
        try:
            case(random.Random(seed))
        except BaseException:
            print(f"HVD_FUZZ_SEED={seed} runs this case alone.")
            raise
        seed += 1
        num_run += 1


def changed(message: bytes, rng: random.Random) -> bytes:
    """`message` with a few bytes set, cut out, put in or repeated."""
    data = bytearray(message)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 8, 40)))
        telling = bytes(rng.choices((0, 1, 2, 7, 0x7F, 0x80, 0xFF), k=end - at))
        match rng.randrange(6):
            case 0 | 1:
                data[at:end] = telling
            case 2:
                data[at:end] = rng.randbytes(end - at)
            case 3:
                del data[at:end]
            case 4:
                data[at:at] = data[at:end]
            case _:
                del data[at:]
    return bytes(data)
