"""`hvdrun --distribute` and `--keras-distribution` put this on the path."""
