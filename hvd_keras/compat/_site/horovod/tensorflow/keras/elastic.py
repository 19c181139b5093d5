"""`horovod.tensorflow.keras.elastic`; what is there raises on use."""

from hvd_keras.compat.elastic import *  # noqa: F403
