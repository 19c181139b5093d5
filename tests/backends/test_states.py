"""States of layers after training are what the user says they are."""

from states_of_layers import *  # noqa: F403
