"""`horovod.ray.runner`."""

from hvd_keras.compat.ray import *  # noqa: F403
