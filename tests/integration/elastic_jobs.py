"""Runs elastic jobs in tests, and reads what their members tell."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jobs

PROGRAM = str(Path(__file__).parent / "elastic_rank.py")
_GENERATION = re.compile(
    r"\[(\d+)\] generation (\d+) rank (\d+)/(\d+) local (\d+) pid (\d+) "
    r"after (\d+) ms at ([\d.]+)\n"
)


class Place:
    """What a member has told last."""

    def __init__(self, match: re.Match[str]) -> None:
        *numbers, seconds = match.groups()
        self.seconds = float(seconds)  # monotonic, when it was in
        (self.member, self.generation, self.rank, self.size, self.local_rank,
         self.pid, self.milliseconds) = map(int, numbers)  # fmt: skip


class ElasticJob:
    """A job that runs; its processes end with it."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Starts hvdrun with the arguments."""
        self.end_file = folder / "end"
        command = program or [PROGRAM, str(self.end_file)]
        self._popen = subprocess.Popen(
            [*prefix, sys.executable, "-m", "hvd_keras.run", *arguments,
             sys.executable, *command],
            env=jobs.clean_environ(**(environ or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._popen.stdout is not None
        os.set_blocking(self._popen.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._popen.stdout, selectors.EVENT_READ)
        self.text = ""
        self.places: dict[int, Place] = {}  # by member

    @property
    def pid(self) -> int:
        """The process of hvdrun."""
        return self._popen.pid

    def read(self, seconds: float) -> bool:
        """Reads what comes in that time; returns False at the end."""
        if not self._selector.select(seconds):
            return True
        assert self._popen.stdout is not None
        data = self._popen.stdout.read()
        self.text += data.decode("utf-8", "replace")
        for match in _GENERATION.finditer(self.text):
            place = Place(match)
            self.places[place.member] = place
        return bool(data)

    def wait_for(self, text: str, seconds: float = 20.0) -> None:
        """Waits until hvdrun or a member has printed that."""
        deadline = time.monotonic() + seconds
        while text not in self.text:
            left = deadline - time.monotonic()
            assert left > 0, self._shown()
            assert self.read(left), self._shown()

    def wait_for_generation(self, generation: int, size: int) -> list[Place]:
        """Returns the places in a generation, by rank, when all are in."""
        deadline = time.monotonic() + 20.0
        while True:
            found = [
                p for p in self.places.values() if p.generation == generation
            ]
            if len(found) == size:
                found.sort(key=lambda place: place.rank)
                assert [p.rank for p in found] == list(range(size))
                assert all(p.size == size for p in found), self._shown()
                return found
            left = deadline - time.monotonic()
            assert left > 0, self._shown()
            assert self.read(left), self._shown()

    def wait_for_size(self, size: int, *, after: int = 0) -> list[Place]:
        """Returns the places, by rank, when so many ranks are in a generation.

        Args:
            size: The number of ranks.
            after: An earlier generation.
        """
        deadline = time.monotonic() + 20.0
        while True:
            generation = max(
                (p.generation for p in self.places.values()), default=0
            )
            found = [
                p for p in self.places.values() if p.generation == generation
            ]
            is_whole = len(found) == size and found[0].size == size
            if generation > after and is_whole:
                return self.wait_for_generation(generation, size)
            left = deadline - time.monotonic()
            assert left > 0, self._shown()
            assert self.read(left), self._shown()

    def end(self) -> int:
        """Tells the members to end; returns the status of hvdrun."""
        self.end_file.touch()
        return self.wait()

    def wait(self, seconds: float = 30.0) -> int:
        """Waits for the end of hvdrun; returns its status."""
        deadline = time.monotonic() + seconds
        while self.read(0.1):
            assert time.monotonic() < deadline, self._shown()
        return self._popen.wait(5)

    def close(self) -> None:
        """Ends what is left."""
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        self._selector.close()
        assert self._popen.stdout is not None
        self._popen.stdout.close()

    def _shown(self) -> str:
        return f"hvdrun (pid {self.pid}) has printed:\n{self.text}"

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def program_with(
    folder: Path,
    *,
    first: str = "",
    init: str = "hvd.init()",
    before: str = "",
    after: str = "",
) -> list[str]:
    """Writes a program like elastic_rank.py; returns it with its arguments.

    Args:
        folder: Where to write it.
        first: Code that runs first.
        init: How it calls `init()`.
        before: Code that runs each time, before a rank tells its place.
        after: The same, when it has told it.
    """
    tell = "tell(began)\n"
    indent = " " * 16
    new = [textwrap.dedent(before), tell, textwrap.dedent(after)]
    code = Path(PROGRAM).read_text()
    for old, wanted in (
        ("hvd.init()", init),
        (indent + tell, "".join(textwrap.indent(one, indent) for one in new)),
    ):
        assert old in code
        code = code.replace(old, wanted)
    changed = folder / "changed.py"
    changed.write_text(code)
    program = folder / "program.py"
    program.write_text(
        f"{textwrap.dedent(first)}\nexec(open({str(changed)!r}).read())\n"
    )
    return [str(program), str(folder / "end")]


def kill(*places: Place) -> None:
    """Kills members suddenly."""
    for place in places:
        os.kill(place.pid, signal.SIGKILL)
