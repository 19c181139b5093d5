"""`horovod.torch.mpi_ops`."""

from hvd_keras.compat.torch.mpi_ops import *  # noqa: F403
