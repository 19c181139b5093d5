"""`horovod.tensorflow.mpi_ops`."""

from hvd_keras.compat.mpi_ops import *  # noqa: F403
