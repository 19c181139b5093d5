"""Makes a virtual environment with an extra of the package, for its tests.

    python tools/extra_venv.py ray build/extras/ray [REQUIREMENT ...]

It sees the packages of this Python too, behind its own.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def main(extra: str, folder: Path, *more: str) -> None:
    needed = [*_requirements(extra), *more]
    mark = folder / "installed"
    if mark.exists() and mark.read_text() == str(needed):
        return
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *needed], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    outer = sysconfig.get_path("purelib")
    (packages / "outer.pth").write_text(f"{outer}\n")
    mark.write_text(str(needed))


def _requirements(extra: str) -> list[str]:
    # Python 3.10 has no parser of TOML; a list of strings is one of Python too.
    text = (_ROOT / "pyproject.toml").read_text()
    (value,) = re.findall(rf"^{extra} = (\[.*\])$", text, re.M)
    found: list[str] = ast.literal_eval(value)
    return found


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
