"""A loop of one's own on unequal shares is told what to do."""

from unequal_loops import *  # noqa: F403
