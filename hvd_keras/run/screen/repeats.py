"""Known lines that libraries print on every rank: they are shown once.

TensorFlow describes the machine when it starts, and Keras warns of its own
default. A line that is not known here is always shown.
"""

from __future__ import annotations

import re

# TensorFlow's prefix has the time and the pid, so it differs from rank to rank.
_LOGGED = re.compile(
    rb"(?:[IWE]\d{4} \d\d:\d\d:[\d.]+ +\d+ "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: [IWE] )"
    rb"[\w/.]+:\d+\] (.*)"
)
_KNOWN_LOGS = re.compile(
    rb"oneDNN custom operations are on\. You may see slightly different .*"
    rb"|This TensorFlow binary is optimized .* performance-critical operations."
    rb"|Could not find cuda drivers on your machine, GPU will not be used\."
    rb"|Unable to register cu(DNN|FFT|BLAS) factory: Attempting to register .*"
    rb"|computation placer already registered\. .*"
    rb"|failed call to cuInit: .*"
    rb"|TF-TRT Warning: Could not find TensorRT"
)
_KNOWN_LINES = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are "
    rb"written to STDERR"
    rb"|To enable the following instructions: .*, in other operations, rebuild "
    rb"TensorFlow with the appropriate compiler flags\."
)
# Python shows the line of source below a warning.
_KNOWN_WARNINGS = re.compile(
    rb"\S.*[/\\]keras[/\\]src[/\\].*: UserWarning: `shuffle=True` was passed, "
    rb"but will be ignored since the data `x` was provided as .*"
)


class Repeats:
    """Remembers which known lines of a job were shown."""

    def __init__(self) -> None:
        self._shown: set[bytes] = set()
        self._sources: dict[bytes, bytes] = {}  # by the warning above them
        self._warned: dict[int, tuple[bytes, bool]] = {}  # last line, by rank

    def is_one(self, rank: int, line: bytes) -> bool:
        """Whether `line` of `rank`, which is to be shown, is a repetition."""
        text = known_text(line)
        if text is None:
            return self._is_source_of_repetition(rank, line)
        is_repetition = text in self._shown
        self._shown.add(text)
        if _KNOWN_WARNINGS.fullmatch(text):
            self._warned[rank] = (text, is_repetition)
        return is_repetition

    def _is_source_of_repetition(self, rank: int, line: bytes) -> bool:
        warning, is_repetition = self._warned.pop(rank, (b"", False))
        if warning and not is_repetition:
            self._sources[warning] = line
        return is_repetition and self._sources.get(warning) == line


def known_text(line: bytes) -> bytes | None:
    """Returns what `line` says if a library is known to say it, else None."""
    if _KNOWN_LINES.fullmatch(line) or _KNOWN_WARNINGS.fullmatch(line):
        return line
    logged = _LOGGED.fullmatch(line)
    if logged is not None and _KNOWN_LOGS.fullmatch(logged[1]):
        return logged[1]
    return None
