"""Helpers that every layer may use: logging, dtypes, error texts, seeds."""
