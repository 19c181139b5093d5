"""`horovod.tensorflow.functions`."""

from hvd_keras.compat.functions import *  # noqa: F403
