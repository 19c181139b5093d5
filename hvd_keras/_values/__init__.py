"""Exchanges objects between ranks, compares values, checks the root rank."""
