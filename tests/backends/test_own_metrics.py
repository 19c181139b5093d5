"""Metrics that cannot be summed are averaged, and named."""

from __future__ import annotations

from own_metrics import (  # noqa: F401
    test_an_evaluation_of_other_models_is_told,
    test_functions_of_a_batch_are_averaged_and_named,
    test_metrics_of_rows_are_not_named,
    test_metrics_without_variables_are_averaged_and_named,
    test_what_validation_has_traced_is_not_used_for_other_rows,
)
