"""`hvdrun --horovod-compat` puts this on the path: see hvd_keras.compat."""
