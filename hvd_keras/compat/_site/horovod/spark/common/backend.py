"""`horovod.spark.common.backend`."""

from hvd_keras.compat.spark import Backend as Backend
from hvd_keras.compat.spark import SparkBackend as SparkBackend
from hvd_keras.compat.spark import default_num_proc as default_num_proc
