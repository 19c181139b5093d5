"""hvdrun: starts the ranks of a job and looks after them, on several hosts too.

It uses the standard library only and never imports TensorFlow.
"""
