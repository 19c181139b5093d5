"""Runs a Python program in which `import horovod` imports hvd_keras.

    python -m hvd_keras.compat driver.py [ARGUMENT ...]

The rest of the line is one for Python, so `-m driver` works too.

    python -m hvd_keras.compat --install

makes it so in all programs of this virtual environment, also where somebody
replaces PYTHONPATH. `--uninstall` undoes it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from hvd_keras._common import horovod_site

_USAGE = (
    "usage: python -m hvd_keras.compat driver.py [ARGUMENT ...]\n"
    "       python -m hvd_keras.compat --install | --uninstall"
)


def _files() -> dict[Path, str]:
    """What `--install` writes."""
    command = os.path.join(horovod_site.COMMANDS, "horovodrun")
    run = f"import runpy; runpy.run_path({command!r}, run_name='__main__')"
    return {
        Path(sysconfig.get_path("purelib"), "hvd_keras_horovod.pth"): (
            horovod_site.SITE + "\n"
        ),
        Path(sysconfig.get_path("scripts"), "horovodrun"): (
            f"#!{sys.executable}\n{run}\n"
        ),
    }


def _install() -> None:
    if sys.prefix == sys.base_prefix:
        sys.exit("hvd_keras.compat: --install needs a virtual environment.")
    found = importlib.util.find_spec("horovod")
    origin = str(found and found.origin)
    # That of another clone is replaced.
    ours = os.path.join("hvd_keras", "compat", "_site", "horovod")
    if found and not os.path.dirname(origin).endswith(ours):
        sys.exit(
            f"hvd_keras.compat: Horovod itself is installed, in {origin}: "
            "`pip uninstall horovod` first."
        )
    for path, text in _files().items():
        path.write_text(text)
        path.chmod(0o755)
    print(
        f"In {sys.prefix}, `import horovod` imports hvd_keras from now on, "
        "and `horovodrun` is hvdrun."
    )


def _uninstall() -> None:
    for path in _files():
        path.unlink(missing_ok=True)
    print(f"In {sys.prefix}, `horovod` is hvd_keras no more.")


def main() -> None:
    """Becomes that program, or changes the environment."""
    arguments = sys.argv[1:]
    if arguments == ["--install"]:
        _install()
    elif arguments == ["--uninstall"]:
        _uninstall()
    elif arguments:
        _become(arguments)
    else:
        sys.exit(_USAGE)


def _become(arguments: list[str]) -> None:
    horovod_site.use()
    own = 3 + len(arguments)  # python -m hvd_keras.compat
    flags = sys.orig_argv[1 : 1 + len(sys.orig_argv) - own]
    os.execv(sys.executable, [sys.executable, *flags, *arguments])


if __name__ == "__main__":
    main()
