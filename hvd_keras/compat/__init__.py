"""The functions of hvd_keras under Horovod's names, arguments and defaults.

    import hvd_keras.compat as hvd

is what `import horovod.tensorflow as hvd` was: the deprecated `average=`,
`device_dense=` and `device_sparse=` are accepted, and arguments by position in
Horovod's order. For programs that are not to be changed at all there is
`hvdrun --horovod-compat`, or `import hvd_keras.compat.horovod` as their first
line: `import horovod.tensorflow.keras as hvd` and the like then end here.

What differs from Horovod, and what is missing, is in docs/horovod.md.
"""

from hvd_keras.compat import callbacks, elastic
from hvd_keras.compat.basics import *  # noqa: F403
from hvd_keras.compat.basics import __all__ as _basics
from hvd_keras.compat.compression import Compression
from hvd_keras.compat.functions import *  # noqa: F403
from hvd_keras.compat.functions import __all__ as _functions
from hvd_keras.compat.ops import *  # noqa: F403
from hvd_keras.compat.ops import __all__ as _ops
from hvd_keras.compat.training import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
)
from hvd_keras.layers import SyncBatchNormalization

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "callbacks",
    "elastic",
    *_basics,
    *_functions,
    *_ops,
]
