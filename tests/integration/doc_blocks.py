r"""Finds the Python in README.md and docs, and runs it as one rank of a job.

    hvdrun -np 2 python tests/integration/doc_blocks.py \
        2-tensorflow docs/run.md

Every block that begins with ```python or ```diff runs, in the order of its
page, with the names that the page has made so far; of a diff, what it leads to.
A reader brings some things along: what `_BROUGHT_ALONG` has, and what a page
says in `<!-- Brought along: ... -->`.

Without another word a block runs on 2 ranks with TensorFlow. The line before it
may say `<!-- Runs on 1 rank with jax. -->`, or `2 elastic ranks` there, or
`2 distributed ranks` for an unchanged script, or `with jax and optuna` if it
needs that module too. Or it says `*Not run: WHY.*`, which the reader sees.
"""

from __future__ import annotations

import dataclasses
import linecache
import os
import pathlib
import re
import sys
import traceback
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
)

_BLOCK = re.compile(
    r"^(?P<mark>[^\n]*)\n(?P<space>[ ]*)```(?P<kind>python|diff)\n"
    r"(?P<code>.*?)^[ ]*```$"
    r"|^<!-- Brought along:\n(?P<brought>.*?)^-->$",
    re.M | re.S,
)
_RUNS = re.compile(
    r"<!-- Runs on (\d) (elastic |distributed )?ranks? with (\w+)"
    r"(?: and (\w+))?\. -->"
)
_NOT_RUN = re.compile(r"\*Not run: (\w[^*]{14,})\.\*")

_BROUGHT_ALONG = """
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
y = np.arange(96) % 3
x_test, y_test = x[:20], y[:20]

def build_model():
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )

def load_data():
    return x, y
"""


@dataclasses.dataclass(frozen=True)
class Job:
    """What runs a block: so many ranks, on a backend of Keras."""

    num_ranks: int = 2
    backend: str = "tensorflow"
    kind: str = ""  # or "elastic", or "distributed": an unchanged script
    needed: str = ""  # another module

    def __str__(self) -> str:
        more = [word for word in (self.kind, self.needed) if word]
        return "-".join([str(self.num_ranks), self.backend, *more])

    def options(self) -> list[str]:
        """Returns the options of hvdrun for it."""
        options = ["-np", str(self.num_ranks)]
        if self.kind == "elastic":
            options += ["--min-np", "1"]
        elif self.kind == "distributed":
            ranks = map(str, range(self.num_ranks))
            options += ["--distribute", "--show-ranks", ",".join(ranks)]
        return options


@dataclasses.dataclass(frozen=True)
class Block:
    """Some Python of a page; `line` is that of its first line."""

    page: str
    line: int
    code: str
    job: Job | None  # None: it is not run
    is_brought: bool


def read(page: str) -> list[Block]:
    """Returns the blocks of a page, in order.

    Raises:
        ValueError: A mark before a block has words that are not known.
    """
    text = (ROOT / page).read_text()
    return [_to_block(page, text, found) for found in _BLOCK.finditer(text)]


def _to_block(page: str, text: str, found: re.Match[str]) -> Block:
    name = "code" if found["brought"] is None else "brought"
    line = text.count("\n", 0, found.start(name)) + 1
    indent = len(found["space"] or "")
    code = "".join(
        one[indent:] if one.strip() else one
        for one in found[name].splitlines(keepends=True)
    )
    if found["kind"] == "diff":
        code = side_of_diff(code, "+")
    job: Job | None = Job()
    mark = (found["mark"] or "").strip()
    if mark.startswith(("<!-- Run", "*Not run")):
        runs = _RUNS.fullmatch(mark)
        if runs is None and not _NOT_RUN.fullmatch(mark):
            raise ValueError(f"{page}:{line}: this mark is unknown: {mark}")
        job = None
        if runs:
            number, kind, backend, needed = runs.groups()
            job = Job(int(number), backend, (kind or "").strip(), needed or "")
    return Block(page, line, code, job, name == "brought")


def side_of_diff(diff: str, sign: str) -> str:
    """Returns the text before (`-`) or after (`+`) a diff."""
    lines = diff.splitlines(keepends=True)
    return "".join(
        line[1:] or "\n" for line in lines if line[0] in f" \n{sign}"
    )


def jobs_of(page: str) -> list[Job]:
    """Returns the jobs that run a block of the page."""
    blocks = [block for block in read(page) if not block.is_brought]
    return list(dict.fromkeys(block.job for block in blocks if block.job))


def _remember_source(page: str, blocks: list[Block]) -> None:
    """Lets tracebacks, and TensorFlow's AutoGraph, find the source."""
    lines: list[str] = []
    for block in blocks:
        lines += ["\n"] * (block.line - 1 - len(lines))
        lines += block.code.splitlines(keepends=True)
    size = sum(map(len, lines))
    linecache.cache[page] = (size, None, lines, page)


def _run_page(page: str, job: str) -> None:
    import keras

    import hvd_keras as hvd

    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(_BROUGHT_ALONG, namespace)
    blocks = [b for b in read(page) if b.is_brought or str(b.job) == job]
    _remember_source(page, blocks)
    for block in blocks:
        # An error names the line of the page.
        code = "\n" * (block.line - 1) + block.code
        exec(compile(code, page, "exec"), namespace)
    assert not hvd.is_initialized() or hvd.size() == int(job[0]), page
    keras.distribution.set_distribution(None)
    hvd.shutdown()
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session()


def main() -> None:
    """Runs those blocks of the pages that are for this job."""
    job, *pages = sys.argv[1:]
    for page in pages:
        try:
            _run_page(page, job)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # others may wait in a collective
        print("ran", page, flush=True)


if __name__ == "__main__":
    main()
