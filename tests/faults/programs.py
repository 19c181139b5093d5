"""Writes the program of a case: a training loop with one fault in it.

A program has a fault on one rank, from one step on. The line that a good
verdict names carries a mark in `lines`, which never reaches the file.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

_LAYERS = ("dense", "conv", "norm", "gru", "embedding", "attention")
MARK = "  # <- the line"

_HEAD = """
import ctypes
import os
import signal
import sys
import time

import hvd_keras as hvd
import numpy as np
from hvd_keras import _native

import my_data

hvd.init()
core = _native.core()
rank = hvd.rank()
VICTIM, STEP = {victim}, {step}


def note(name):
    with open(os.path.join({folder!r}, name), "w") as file:
        file.write(str(time.time()))


def is_due(step):
    if rank == VICTIM and step == STEP:
        note("fault")
        return True
    return False


def work():
    time.sleep({work_seconds})
"""

_TAIL = """
for step in range({num_steps}):
    my_data.next_batch(rank, step)
    work()
    train_step(step)
    if step == 8 and rank == 0:
        note("ready")
hvd.shutdown()
"""

_DATA = """
import os
import time

VICTIM, STEP = {victim}, {step}


def is_due(rank, step):
    if rank != VICTIM or step != STEP:
        return False
    with open(os.path.join({folder!r}, "fault"), "w") as file:
        file.write(str(time.time()))
    return True


def read(rank, step):
    time.sleep({read_seconds})
    {fault}


def next_batch(rank, step):
    read(rank, step)
    return [step]
"""


@dataclasses.dataclass
class Program:
    """The text of a program, by file, and the marked line."""

    files: dict[str, str]

    def write(self, folder: Path) -> None:
        """Writes the files, without the mark."""
        for name, text in self.files.items():
            (folder / name).write_text(text.replace(MARK, ""))

    def marked(self) -> tuple[str, int] | None:
        """The file and the line of the mark."""
        for name, text in self.files.items():
            for number, line in enumerate(text.splitlines(), 1):
                if line.endswith(MARK):
                    return name, number
        return None


class Writer:
    """Writes programs of one shape; the random numbers choose it."""

    def __init__(
        self, rng: random.Random, folder: Path, *, victim: int, step: int
    ) -> None:
        self.names = [
            f"{rng.choice(_LAYERS)}_{i}/{rng.choice(('kernel', 'bias'))}"
            for i in range(rng.randint(4, 8))
        ]
        self.sizes = [rng.randint(1, 5000) for _ in self.names]
        self.dtype = rng.choice(("float32", "float64", "int32"))
        self.style = rng.choice(("lines", "loop", "module"))
        self.uses_tensorflow = False
        self.folder = folder
        self.victim, self.step = victim, step
        self.work_seconds = rng.choice((0.0, 0.001, 0.004))
        self.read_seconds = rng.choice((0.0, 0.001, 0.002))
        self.num_steps = 100_000

    def call(self, index: int, *, name: str = "", shape: str = "") -> str:
        """The call of a collective, as a line."""
        name = name or self.names[index]
        shape = shape or f"({self.sizes[index]},)"
        if self.uses_tensorflow:
            tensor = f"tf.ones({shape}, tf.{self.dtype})"
            return f'hvd.allreduce({tensor}, hvd.Sum, name="{name}")'
        array = f"np.ones({shape}, np.{self.dtype})"
        return f'core.allreduce("{name}", [{array}], 1)'

    def usual(self, order: Sequence[int] | None = None) -> list[str]:
        """The calls of a step."""
        return [
            self.call(i)
            for i in (range(len(self.names)) if order is None else order)
        ]

    def program(self, body: Sequence[str], fault: str = "pass") -> Program:
        """Returns a program.

        Args:
            body: The lines of `train_step(step)`.
            fault: The line of `read(rank, step)` that makes the fault.
        """
        values = {
            "victim": self.victim,
            "step": self.step,
            "folder": str(self.folder),
            "work_seconds": self.work_seconds,
            "read_seconds": self.read_seconds,
            "num_steps": self.num_steps,
        }
        head = _HEAD.format(**values)
        if self.uses_tensorflow:
            head = head.replace(
                "import numpy", "import tensorflow as tf\nimport numpy"
            )
        step = "\n".join(
            ["", "", "def train_step(step):", *(f"    {one}" for one in body)]
        )
        tail = _TAIL.format(**values)
        data = _DATA.format(fault=fault, **values)
        if self.style != "module":
            return Program({"train.py": head + step + tail, "my_data.py": data})
        return Program(
            {
                "common.py": head,
                "layers.py": "from common import *\n" + step + "\n",
                "train.py": "from common import *\n"
                "from layers import train_step\n" + tail,
                "my_data.py": data,
            }
        )

    def step_with(
        self, odd: Sequence[str], usual: Sequence[str] | None = None
    ) -> list[str]:
        """The lines of a step that differs on the victim when it is due."""
        return [
            "if is_due(step):",
            *(f"    {line}" for line in odd),
            "else:",
            *(f"    {line}" for line in usual or self.usual()),
        ]
