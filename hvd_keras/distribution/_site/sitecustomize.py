"""Makes a script that knows nothing of it a rank of a job.

Python imports this before the script: see `hvd_keras.distribution._scripts`.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _run_the_next_one() -> None:
    """Runs the `sitecustomize` that Python would have found without this."""
    here = os.path.dirname(os.path.abspath(__file__))
    place = [os.path.abspath(path) for path in sys.path].index(here)
    found = importlib.machinery.PathFinder.find_spec(
        "sitecustomize", sys.path[place + 1 :]
    )
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


_run_the_next_one()
# Processes that this one starts are no ranks.
_mode = os.environ.pop("HVD_DISTRIBUTE", "")
if _mode not in ("", "none") and "HVD_RANK" in os.environ:
    try:
        from hvd_keras.distribution import _scripts

        _scripts.begin(_mode)
    except Exception as error:  # Python would go on without this
        raise SystemExit(f"{type(error).__name__}: {error}") from None
