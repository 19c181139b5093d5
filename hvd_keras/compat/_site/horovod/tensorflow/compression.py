"""`horovod.tensorflow.compression`."""

from hvd_keras.compat.compression import *  # noqa: F403
