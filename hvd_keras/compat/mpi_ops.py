"""`horovod.tensorflow.mpi_ops`: the collectives, ranks and sizes."""

from hvd_keras.compat.basics import *  # noqa: F403
from hvd_keras.compat.basics import __all__ as _basics
from hvd_keras.compat.ops import *  # noqa: F403
from hvd_keras.compat.ops import __all__ as _ops

__all__ = [*_basics, *_ops]
