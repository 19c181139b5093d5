"""`horovod.tensorflow.mpi_ops`."""

from hvd_keras.compat.basics import *  # noqa: F403
from hvd_keras.compat.ops import *  # noqa: F403
