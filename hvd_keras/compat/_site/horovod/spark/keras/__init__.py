"""`horovod.spark.keras`."""

from hvd_keras.compat.spark_keras import *  # noqa: F403
