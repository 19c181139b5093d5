"""States of layers after training are what the user says they are."""

from __future__ import annotations

from states_of_layers import (  # noqa: F401
    test_a_function_merges_the_states_of_a_layer,
    test_held_values_are_named,
    test_layers_of_keras_are_known,
    test_own_states_are_not_broadcast,
    test_states_are_what_the_user_says,
    test_unknown_states_are_told_once_and_made_equal,
    test_untracked_states_are_named,
    test_wrong_arguments_are_named,
)
