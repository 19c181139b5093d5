"""`horovod.runner.elastic.discovery`."""

from hvd_keras.compat.discovery import *  # noqa: F403
