"""`horovod.runner`, which hvd_keras lacks: importing it says so."""

from hvd_keras.compat._missing import missing_module

raise missing_module(__name__, "use `horovod.run` or `hvdrun`")
