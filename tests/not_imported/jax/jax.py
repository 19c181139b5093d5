"""Stands for jax in jobs that do not use it: see clean_environ.py."""

raise ImportError("jax is left out of this job")
