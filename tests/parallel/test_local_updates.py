"""Local updates average weights when they should."""

from local_updates import *  # noqa: F403
from local_updates_saved import *  # noqa: F403
