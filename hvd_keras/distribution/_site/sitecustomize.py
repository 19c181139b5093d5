"""Begins each Python process of `hvdrun --verify` and `--distribute`.

Python imports this before the script. Under `--verify`, ranks get random
numbers that differ, as they would without a seed; rank 0 and the one process
get the same. What the script seeds by itself stays its own.
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
    paths = [path for path in sys.path if os.path.abspath(path) != here]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


def _begin_script() -> None:
    """Makes a script that knows nothing of it a rank of a job."""
    # Processes that this one starts are no ranks.
    mode = os.environ.pop("HVD_DISTRIBUTE", "none")
    if mode in ("", "none") or "HVD_RANK" not in os.environ:
        return
    try:
        from hvd_keras.distribution import _scripts

        _scripts.begin(mode)
    except Exception as error:  # Python would go on without this
        raise SystemExit(f"{type(error).__name__}: {error}") from None


_seed()
_run_the_next_one()
_begin_script()
