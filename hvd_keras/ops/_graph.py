"""Changes to a graph that is being traced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def run_independently(graph: tf.Graph, output: Any) -> None:
    """Takes the op of `output` out of the automatic control dependencies."""
    control_dependencies = getattr(graph, "experimental_acd_manager", None)
    if control_dependencies is not None:
        first = output[0] if isinstance(output, list | tuple) else output
        control_dependencies.run_independently(getattr(first, "op", first))
