"""hvdrun: starts the ranks of a job on this machine and looks after them.

It uses the standard library only and never imports TensorFlow.
"""
