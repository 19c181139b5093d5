"""Put on the path by `hvdrun --horovod-compat`: see hvd_keras.compat."""
