"""The ranks of one host: their environment, processes and input."""
