"""`horovod.torch.compression`."""

from hvd_keras.compat.compression import *  # noqa: F403
