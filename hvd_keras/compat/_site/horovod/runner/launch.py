"""`horovod.runner.launch`, which hvd_keras lacks: importing it says so."""

from hvd_keras.compat._missing import missing_module

raise missing_module(__name__, "use `hvdrun`, or `horovod.run` in a program")
