"""Gives the ranks their standard input.

Rank 0 gets that of the launcher itself, so that nothing is read which the rank
does not ask for. The other ranks get none. A program for Python goes to all
ranks: all must run it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence

from hvd_keras.run.usage import UsageError

_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_WITH_VALUE = "WX"  # options of Python that take a value
_WITH_PROGRAM = "cm"
_INFORMATION = "Vh?"


class StandardInput:
    """The launcher's standard input, shared out among the ranks."""

    def __init__(
        self, command: Sequence[str], program: int | None = None
    ) -> None:
        """Reads the program, if Python is to read it from standard input.

        Args:
            command: What the ranks run.
            program: A descriptor of the program, if it is here already.

        Raises:
            UsageError: The program would come from a terminal.
        """
        self._program = program
        self._is_ours_to_give = True
        if program is None and python_reads_program(command):
            self._program = _read_program()
        elif os.isatty(0):
            # In the background, rank 0 would take what is typed for the shell.
            with contextlib.suppress(OSError):  # not our own terminal
                self._is_ours_to_give = os.tcgetpgrp(0) == os.getpgrp()

    def open_for(self, rank: int) -> int:
        """Returns a descriptor that the caller closes."""
        if self._program is not None:
            # Opened anew, so that each rank reads from the start.
            return os.open(f"/proc/self/fd/{self._program}", os.O_RDONLY)
        if rank == 0 and self._is_ours_to_give:
            return os.dup(0)
        return os.open(os.devnull, os.O_RDONLY)

    def program_pieces(self, max_bytes: int) -> Iterator[bytes]:
        """Yields the program, if there is one, for ranks of another host."""
        if self._program is not None:
            offset = 0
            while piece := os.pread(self._program, max_bytes, offset):
                offset += len(piece)
                yield piece

    def close(self, *, keeps_program: bool = False) -> None:
        """Leaves standard input to the ranks: a writer sees when they end.

        Args:
            keeps_program: Whether more ranks may be started later.
        """
        if self._program is not None and not keeps_program:
            os.close(self._program)
            self._program = None
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)


def python_reads_program(command: Sequence[str]) -> bool:
    """Whether `command` is Python without a program in its arguments."""
    program = os.path.basename(shutil.which(command[0]) or command[0])
    if _PYTHON.fullmatch(program) is None:
        return False
    arguments = iter(command[1:])
    for argument in arguments:
        if argument == "-":
            return True
        if not argument.startswith("-"):
            return False  # the name of a script
        if argument.startswith("--"):
            if argument.startswith(("--help", "--version")):
                return False
            if argument == "--check-hash-based-pycs":
                next(arguments, None)
            continue
        for position, letter in enumerate(argument[1:], start=2):
            if letter in _WITH_PROGRAM + _INFORMATION:
                return False
            if letter in _WITH_VALUE:
                if position == len(argument):
                    next(arguments, None)
                break
    return True


def _read_program() -> int:
    if os.isatty(0):
        raise UsageError(
            "Python must get a program, as in: hvdrun -np 2 python train.py. "
            "Received: none; it would be read from this terminal."
        )
    program = os.memfd_create("hvdrun-program")
    while data := os.read(0, 1 << 20):
        os.write(program, data)
    return program
