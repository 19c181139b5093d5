"""Reduces the gradients of optimizers and tapes over the ranks."""
