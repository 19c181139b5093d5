from __future__ import annotations

import pytest

from hvd_keras.run.ranks.standard_input import python_reads_program


@pytest.mark.parametrize(
    "command",
    [
        "python",
        "python -",
        "python3.11 - --epochs 3",
        "/usr/bin/python3 -u -W ignore",
        "python -Bu -Xdev -",
        "python -uX dev",
        "python --check-hash-based-pycs always -",
    ],
)
def test_python_reads_its_program_from_standard_input(command: str) -> None:
    assert python_reads_program(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "python train.py -",
        "python -u train.py",
        "python -c pass",
        "python -Bc pass -",
        "python -um train",
        "python -Wignore train.py",
        "python -W ignore train.py",
        "python --version",
        "python -VV",
        "cat -",
        "pythonic",
    ],
)
def test_command_that_has_its_program_reads_data(command: str) -> None:
    assert not python_reads_program(command.split())
