"""The functions of hvd_keras under Horovod's names, arguments and defaults.

    import hvd_keras.compat as hvd

replaces `import horovod.tensorflow as hvd`. The functions accept the deprecated
`average=`, `device_dense=` and `device_sparse=`, and positional arguments in
Horovod's order.

To run programs without any change, use `hvdrun --horovod-compat`, or make
`import hvd_keras.compat.horovod` their first line. Then
`import horovod.tensorflow.keras as hvd` and the like import this package.
`python -m hvd_keras.compat driver.py` needs no such line.

docs/horovod.md lists what differs from Horovod and what is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_keras.compat.tensorflow import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Late, for drivers of Spark and Ray need no TensorFlow.
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.tensorflow"), name)


def __dir__() -> list[str]:
    return dir(importlib.import_module(f"{__name__}.tensorflow"))
