"""`horovod.spark.torch`, which hvd_keras lacks: importing it says so."""

from hvd_keras.compat._missing import missing_module

raise missing_module(
    __name__,
    "train with `hvd_keras.torch` in a function for `horovod.spark.run`, or a "
    "Keras model by `horovod.spark.keras.KerasEstimator`",
)
