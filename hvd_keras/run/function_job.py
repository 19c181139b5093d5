"""hvdrun for a Python process that wants a function run: see `function`.

`python -m hvd_keras.run.function_job FOLDER PID ARGUMENT ...` is hvdrun with
these differences: each rank gets the whole standard input, results go into
FOLDER, and it ends when its caller PID has died.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

from hvd_keras.run import arguments
from hvd_keras.run.__main__ import start
from hvd_keras.run.process import die_with
from hvd_keras.run.results import note_outcome


def main() -> int:
    """Runs the job; returns hvdrun's exit status."""
    folder, caller, *argv = sys.argv[1:]
    die_with(int(caller), signal.SIGTERM)
    options = arguments.parse(argv)
    options.program = os.dup(0)
    options.results_dir = folder
    found = start(options)
    note_outcome(folder, found)
    if os.getppid() != int(caller):  # nobody will read the results
        shutil.rmtree(folder, ignore_errors=True)
    return found.exit_status


if __name__ == "__main__":
    sys.exit(main())
