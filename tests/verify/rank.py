"""Runs programs on a rank, or on the one process, each with its own records.

Usage: python -m verify.rank FOLDER [PROGRAM ...]
"""

from __future__ import annotations

import gc
import sys
import traceback
from pathlib import Path

import hvd_keras as hvd


def main() -> None:
    hvd.init()
    import keras

    from hvd_keras._verify import start
    from verify import programs

    folder, *names = sys.argv[1:]
    name = start.running().name
    for program in names or programs.ALL:
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        where = Path(folder) / program
        where.mkdir(exist_ok=True)
        start.running().begin(where / name)
        try:
            programs.ALL[program]()
        except Exception:
            traceback.print_exc()
            (where / f"{name}.error").write_text(traceback.format_exc())
        start.running().at_exit()
        gc.collect()
    start.running().begin(Path(folder) / f"{name}.end")


if __name__ == "__main__":
    main()
