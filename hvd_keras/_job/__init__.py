"""Starts and ends the job of this process, and keeps its state."""
