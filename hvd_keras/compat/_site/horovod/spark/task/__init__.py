"""`horovod.spark.task`."""

from hvd_keras.spark import get_available_devices as get_available_devices
