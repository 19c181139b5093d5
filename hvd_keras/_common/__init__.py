"""What every layer may use: logging, dtypes, texts of errors, seeds."""
