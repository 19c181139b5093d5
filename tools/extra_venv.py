"""Makes a virtual environment with an extra of the package, for its tests.

    python tools/extra_venv.py ray build/extras/ray [REQUIREMENT ...]

It sees the packages of this Python too, behind its own.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def make_venv(
    folder: Path, needed: list[str], python: str = sys.executable
) -> Path:
    """Makes a virtual environment, unless it is there with the same packages.

    Args:
        folder: Where.
        needed: What pip is to install.
        python: The interpreter.

    Returns:
        The folder of its programs.

    Raises:
        RuntimeError: A command failed; the message is its output.
    """
    mark = folder / "installed"
    if not mark.exists() or mark.read_text() != str(needed):
        run(python, "-m", "venv", "--clear", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "-q", *needed)
        mark.write_text(str(needed))
    return folder / "bin"


def run(*command: str | Path, **variables: str) -> None:
    """Runs a command at the root of the sources, with other variables too.

    Raises:
        RuntimeError: It failed; the message is its output.
    """
    words = list(map(str, command))
    done = subprocess.run(
        words,
        cwd=_ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)} failed:\n{done.stdout}")


def requirements(name: str) -> list[str]:
    """Returns a list of packages in pyproject.toml, such as an extra."""
    # Python 3.10 has no parser of TOML; a list of strings is one of Python too.
    text = (_ROOT / "pyproject.toml").read_text()
    (value,) = re.findall(rf"^{name} = (\[.*?\])$", text, re.M | re.S)
    found: list[str] = ast.literal_eval(value)
    return found


def main(extra: str, folder: Path, *more: str) -> None:
    make_venv(folder, [*requirements(extra), *more])
    (packages,) = folder.glob("lib/python3*/site-packages")
    outer = sysconfig.get_path("purelib")
    (packages / "outer.pth").write_text(f"{outer}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
