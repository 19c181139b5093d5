"""hvd_keras under Horovod's name, for its programs.

This is not Horovod. docs/horovod-modules.md lists what it has.
"""

from typing import Any

from hvd_keras.run.cli.horovod_run import run as run

__version__ = "0.28.1"  # the Horovod whose interface this has


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"hvd_keras, which stands for Horovod here, has no `horovod.{name}`."
    )
