"""`horovod.spark.keras.estimator`."""

from hvd_keras.compat.spark_keras import *  # noqa: F403
