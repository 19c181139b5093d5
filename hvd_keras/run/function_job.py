"""hvdrun for a Python process that wants a function run: see `function`.

`python -m hvd_keras.run.function_job FOLDER PID` runs the job that FOLDER says.
Each rank gets the whole standard input, results go into FOLDER, and the job
ends when its caller PID has died.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
from pathlib import Path

from hvd_keras.run.__main__ import run_job
from hvd_keras.run.job.results import note_outcome
from hvd_keras.run.ranks.process import die_with
from hvd_keras.run.spec import SPEC, of_json


def main() -> int:
    """Runs the job; returns hvdrun's exit status."""
    folder, caller = sys.argv[1:]
    die_with(int(caller), signal.SIGTERM)
    spec = dataclasses.replace(
        of_json((Path(folder) / SPEC).read_text()),
        program=os.dup(0),
        results_folder=folder,
    )
    found = run_job(spec)
    note_outcome(folder, found)
    if os.getppid() != int(caller):  # nobody will read the results
        shutil.rmtree(folder, ignore_errors=True)
    return found.exit_status


if __name__ == "__main__":
    sys.exit(main())
