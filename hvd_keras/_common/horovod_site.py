"""The package `horovod` that is hvd_keras: who can import it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

SITE = str(Path(__file__).parents[1] / "compat" / "_site")

# `horovodrun` is there.
COMMANDS = str(Path(__file__).parents[1] / "compat" / "bin")
_PLACE = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE"


def python_path(environ: Mapping[str, str], folder: str) -> str:
    """Returns the PYTHONPATH with a folder in front."""
    rest = environ.get("PYTHONPATH")
    return folder + (os.pathsep + rest if rest else "")


def is_used() -> bool:
    """Whether `import horovod` imports hvd_keras in this process."""
    return SITE in sys.path


def use() -> None:
    """Makes it so, here and in the processes that this one starts.

    Raises:
        ImportError: Another `horovod` is loaded.
    """
    loaded = sys.modules.get("horovod")
    file = getattr(loaded, "__file__", "") or ""
    if loaded is not None and not file.startswith(SITE):
        raise ImportError(
            "`hvd_keras.compat.horovod` must be imported before `horovod`. "
            f"Received: a process with the horovod of {file!r}."
        )
    if not is_used():
        sys.path.insert(0, SITE)
        os.environ["PYTHONPATH"] = python_path(os.environ, SITE)
        # As activating its environment does: the command needs this Python.
        folders = [COMMANDS, os.path.dirname(sys.executable)]
        path = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = os.pathsep.join([*folders, path])


def of_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a rank, with `horovod` and Horovod's names added."""
    found = {**environ, "PYTHONPATH": python_path(environ, SITE)}
    if "HVD_MEMBER" in environ:  # its place changes
        return {**found, "HOROVOD_ELASTIC": "1"}
    place = {
        f"HOROVOD_{name}": environ[f"HVD_{name}"] for name in _PLACE.split()
    }
    return {**found, **place}
