"""`horovod.tensorflow.util`."""

from hvd_keras.compat.util import *  # noqa: F403
