"""Prints the path of a build tool: from a wheel, or the machine's own.

Usage: find_tool.py NAME
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def find_tool(name: str) -> str | None:
    """Returns the path of `name` in this environment, else on the PATH."""
    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    if name == "cmake":
        try:
            import cmake
        except ImportError:
            pass
        else:
            folders.insert(0, cmake.CMAKE_BIN_DIR)
    folders.append(os.environ.get("PATH", os.defpath))
    return shutil.which(name, path=os.pathsep.join(folders))


if __name__ == "__main__":
    path = find_tool(sys.argv[1])
    if path is None:
        sys.exit(f"{sys.argv[1]} not found: pip install {sys.argv[1]}")
    print(path)
