"""Knows what the script itself does with files, and when the job began."""

from __future__ import annotations

import os
import time
from typing import Any

from hvd_keras._common import user_code

# Ranks may begin a few seconds apart.
_BEGAN = time.time() - 10.0

# Packages by which a script opens files.
_HELPERS = frozenset(
    "codecs contextlib genericpath glob gzip logging matplotlib numpy os "
    "pandas pathlib PIL posixpath shutil subprocess tarfile zipfile".split()
)
# Those that fetch data for it, and keep files that a later call finds.
FETCHERS = frozenset(
    "etils functools gdown imageio joblib kagglehub requests scipy sklearn "
    "tensorflow_datasets torch torchvision urllib wget wrapt".split()
)


def is_of_script(frame: Any, through: frozenset[str] = frozenset()) -> bool:
    """Whether the script, or a module of its own, runs this or has called it.

    Args:
        frame: What runs this.
        through: More packages by which a script may do so.
    """
    helpers = _HELPERS | through
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        is_front = module.startswith(__package__)
        if not is_front and module.partition(".")[0] not in helpers:
            break
        frame = frame.f_back
    # What a module reads while it is imported is not its caller's.
    others = ("hvd_keras", "importlib")
    if frame is None or module.partition(".")[0] in others:
        return False
    path = frame.f_code.co_filename
    return not user_code.is_in_library(path, user_code.foreign_folders())


def is_of_this_job(found: os.stat_result) -> bool:
    """Whether a file or folder has changed since the job began."""
    return found.st_ctime >= _BEGAN
