"""hvdrun: starts the ranks of a job on this machine and looks after them.

Standard library only; TensorFlow is never imported in the launcher.
"""
