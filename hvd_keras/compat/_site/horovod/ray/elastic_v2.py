"""`horovod.ray.elastic_v2`."""

from hvd_keras.compat.ray import *  # noqa: F403
