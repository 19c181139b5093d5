"""Gives each process of `hvdrun --verify` known random numbers.

Python imports this before the script. What the script seeds by itself stays
its own. Ranks get numbers that differ, as they would without a seed; rank 0 and
the one process get the same.
"""

import importlib.machinery
import importlib.util
import os
import random
import sys


def _seed() -> None:
    if os.environ.get("HVD_VERIFY") is None:
        return
    seed = 20000 + int(os.environ.get("HVD_RANK", "0"))
    random.seed(seed)
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(seed)


def _run_the_next_one() -> None:
    """Runs the `sitecustomize` that Python would have found without this."""
    here = os.path.dirname(os.path.abspath(__file__))
    place = [os.path.abspath(path) for path in sys.path].index(here)
    found = importlib.machinery.PathFinder.find_spec(
        "sitecustomize", sys.path[place + 1 :]
    )
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


_seed()
_run_the_next_one()
