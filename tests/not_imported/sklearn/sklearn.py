"""Stands for sklearn in jobs that do not use it: see clean_environ.py."""

raise ImportError("sklearn is left out of this job")
