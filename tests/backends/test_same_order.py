"""Ranks that read data in unequal orders are told, on JAX and torch."""

from order_cases import *  # noqa: F403
