"""Ranks that read data in unequal orders are told, on JAX and torch."""

from order_cases import (  # noqa: F401
    test_a_look_at_the_data_changes_nothing,
    test_a_new_process_goes_on_with_the_orders,
    test_caches_of_batches_are_no_orders,
    test_equal_draws_of_rows_are_told,
    test_equal_orders_outside_of_attributes_pass,
    test_equal_shuffles_of_a_py_dataset_pass,
    test_evaluate_alone_is_compared,
    test_fit_does_not_shuffle_batches,
    test_orders_outside_of_attributes_are_told,
    test_unequal_shuffles_of_a_py_dataset_are_told,
    test_validation_is_compared,
)
