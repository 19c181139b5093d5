"""`horovod.tensorflow.elastic`."""

from hvd_keras.compat.elastic import *  # noqa: F403
