"""A contrastive loss over all ranks trains like one process."""

from __future__ import annotations

import contrastive
import pytest

thorough = pytest.mark.thorough


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize(
    ("form", "jit_compile"),
    [
        ("loss_of_all", False),
        pytest.param("loss_of_all", True, marks=thorough),
        pytest.param("loss_of_own_rows", False, marks=thorough),
        ("loss_of_own_rows", True),
    ],
)
def test_contrastive_loss_equals_one_process(form, jit_compile) -> None:
    contrastive.check_equal_to_one_process(form, jit_compile)
