"""Prints the path of a build tool, from a wheel or from the machine.

Usage: find_tool.py NAME
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import sysconfig

# The attribute of a wheel's module that holds the folder of its programs.
WHEEL_FOLDERS = {"cmake": "CMAKE_BIN_DIR", "ninja": "BIN_DIR"}


def find_tool(name: str) -> str | None:
    """Returns the path of `name` in this environment, else on the PATH."""
    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    # In an isolated build the wheel can be imported but is not beside Python.
    if name in WHEEL_FOLDERS:
        with contextlib.suppress(ImportError):
            wheel = importlib.import_module(name)
            folders.insert(0, getattr(wheel, WHEEL_FOLDERS[name]))
    folders.append(os.environ.get("PATH", os.defpath))
    return shutil.which(name, path=os.pathsep.join(folders))


if __name__ == "__main__":
    path = find_tool(sys.argv[1])
    if path is None:
        sys.exit(f"{sys.argv[1]} not found: pip install {sys.argv[1]}")
    print(path)
