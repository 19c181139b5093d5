"""`horovod.tensorflow`: what `hvd_keras.compat` has."""

from hvd_keras import _native
from hvd_keras.compat import callbacks, elastic, mpi_ops, util
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
    "mpi_ops",
    "util",
    *_basics,
    *_functions,
    *_ops,
]

# As with Horovod, a saved graph with its ops can be imported from here on.
_native.register_ops()
