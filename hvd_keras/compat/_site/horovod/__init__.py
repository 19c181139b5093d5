"""hvd_keras under the name of Horovod: what its TF and Keras programs import.

This is not Horovod. Its modules for other frameworks (torch, mxnet, spark,
ray) are not here.
"""

from typing import Any

from hvd_keras.compat._missing import missing

__version__ = "0.28.1"  # whose interface this is

run = missing("run", "start ranks with `hvdrun`")


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"hvd_keras stands in for horovod.tensorflow, horovod.keras and "
        f"horovod.common alone; it has no `horovod.{name}`"
    )
