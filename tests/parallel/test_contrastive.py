"""A contrastive loss over all ranks trains like one process."""

from __future__ import annotations

import contrastive
import pytest


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("form", contrastive.FORMS)
def test_contrastive_loss_equals_one_process(form, jit_compile) -> None:
    contrastive.check_equal_to_one_process(form, jit_compile)
