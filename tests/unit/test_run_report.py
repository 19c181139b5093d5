"""What hvdrun says at the end of a job that has failed."""

from __future__ import annotations

import sys

import pytest

from hvd_keras.run.screen import report


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["MismatchError: ranks disagree"] * 2, "MismatchError"),
        (
            ["hvd_keras.exceptions.PeerLostError: x", "StalledError: y"],
            "PeerLostError, StalledError",
        ),
        (
            ["hvd_keras.ops._errors.InvalidArgumentError: x"],
            "InvalidArgumentError",
        ),
    ],
)
def test_the_page_on_our_errors_is_named(lines: list[str], names: str) -> None:
    words = f"for causes and cures of {names} see docs/errors.md in the "
    assert report.where_to_read(lines) == f"{words}clone of hvd_keras"


def test_a_module_that_is_missing_names_the_cure() -> None:
    line = "ModuleNotFoundError: No module named '{}'"
    assert "--horovod-compat" in report.where_to_read(
        [line.format("horovod.tensorflow")]
    )
    assert sys.executable in report.where_to_read([line.format("hvd_keras")])
    assert report.where_to_read([line.format("pandas")]) == ""


def test_errors_of_others_name_no_page() -> None:
    lines = [
        "",
        "ValueError: no MismatchError",
        "MyStalledErrors: 3",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: x",
        "my.exceptions.MismatchError: y",
    ]
    assert report.where_to_read(lines) == ""
