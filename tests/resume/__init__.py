"""Training runs that are killed, and go on with other numbers of ranks."""
