"""`horovod.tensorflow.keras.elastic`."""

from hvd_keras.compat.elastic import *  # noqa: F403
