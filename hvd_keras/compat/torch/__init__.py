"""`hvd_keras.torch` with the names, arguments and defaults of `horovod.torch`.

    import hvd_keras.compat.torch as hvd

replaces `import horovod.torch as hvd`. It imports neither Keras nor TensorFlow.
"""

from hvd_keras.compat.compression import Compression
from hvd_keras.compat.torch import elastic as elastic
from hvd_keras.compat.torch.functions import *  # noqa: F403
from hvd_keras.compat.torch.functions import __all__ as _functions
from hvd_keras.compat.torch.mpi_ops import *  # noqa: F403
from hvd_keras.compat.torch.mpi_ops import __all__ as _ops
from hvd_keras.compat.torch.optimizer import DistributedOptimizer
from hvd_keras.torch import SyncBatchNorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    *_functions,
    *_ops,
]
