"""`horovod.ray`."""

from hvd_keras.compat.ray import *  # noqa: F403
