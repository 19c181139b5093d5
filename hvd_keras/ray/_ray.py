"""Ray itself, without Ray Train: actors that import this start sooner."""

from __future__ import annotations

from hvd_keras.exceptions import LaunchError

TRIED = "2.60"

try:
    import ray
    from ray._private.state import (  # developer API
        available_resources_per_node,
    )
except ImportError as error:
    raise LaunchError(
        f"Ray {TRIED} must be installed: pip install '.[ray]' in a clone of "
        f"hvd_keras. Received: {error}."
    ) from error

__all__ = ["available_resources_per_node", "ray"]
