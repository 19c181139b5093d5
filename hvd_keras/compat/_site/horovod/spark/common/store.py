"""`horovod.spark.common.store`."""

from hvd_keras.compat.spark_store import *  # noqa: F403
