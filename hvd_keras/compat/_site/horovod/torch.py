"""`horovod.torch`, which hvd_keras lacks: importing it says so."""

from hvd_keras.compat._missing import missing_module

raise missing_module(
    __name__,
    "train a Keras model with KERAS_BACKEND=torch and `import hvd_keras`",
)
