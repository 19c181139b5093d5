"""`horovod.ray.elastic`."""

from hvd_keras.compat.ray import *  # noqa: F403
