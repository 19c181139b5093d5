"""Compares training on N ranks with training in one process."""
