"""docs/horovod-modules.md says which of Horovod's names are here."""

from __future__ import annotations

import subprocess
import sys

import drawn_pages
import horovod_names
import horovod_surface


def test_the_page_is_that_of_the_code() -> None:
    done = subprocess.run(
        [sys.executable, drawn_pages.TESTS / "horovod_surface.py", "--check"],
        env=drawn_pages.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_page_has_all_modules() -> None:
    page = horovod_surface.PAGE.read_text()
    for module in horovod_names.NAMES:
        assert f"\n## `{module}`\n" in page
