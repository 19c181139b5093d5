"""`horovod.keras.elastic`; all names raise when used."""

from hvd_keras.compat.elastic import *  # noqa: F403
