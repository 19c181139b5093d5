"""hvd_keras under Horovod's name, for its TensorFlow and Keras programs.

This is not Horovod. It lacks Horovod's modules for other frameworks (torch,
mxnet, spark, ray).
"""

from typing import Any

from hvd_keras.run.cli.horovod_run import run as run

__version__ = "0.28.1"  # the Horovod whose interface this has


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"hvd_keras replaces only horovod.tensorflow, horovod.keras and "
        f"horovod.common. It has no `horovod.{name}`."
    )
