"""Runs a Python program in which `import horovod` imports hvd_keras.

    python -m hvd_keras.compat driver.py [ARGUMENT ...]

The rest of the line is one for Python, so `-m driver` works too.
"""

from __future__ import annotations

import os
import sys

from hvd_keras._common import horovod_site


def main() -> None:
    """Becomes that program."""
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit("usage: python -m hvd_keras.compat driver.py [ARGUMENT ...]")
    horovod_site.use()
    own = 3 + len(arguments)  # python -m hvd_keras.compat
    flags = sys.orig_argv[1 : 1 + len(sys.orig_argv) - own]
    os.execv(sys.executable, [sys.executable, *flags, *arguments])


if __name__ == "__main__":
    main()
