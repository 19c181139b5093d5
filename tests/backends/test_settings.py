"""See tests/settings_cases.py."""

from __future__ import annotations

import pytest
from settings_cases import (  # noqa: F401
    test_settings_that_differ_are_refused_each_time,
    test_what_may_differ_is_accepted,
)

pytestmark = pytest.mark.thorough(4)
