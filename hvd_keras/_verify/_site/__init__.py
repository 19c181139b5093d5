"""`hvdrun --verify` puts this on the path: see hvd_keras._verify."""
