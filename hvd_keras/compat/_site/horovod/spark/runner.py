"""`horovod.spark.runner`."""

from hvd_keras.compat.spark import run as run
from hvd_keras.compat.spark import run_elastic as run_elastic
