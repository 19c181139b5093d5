"""Runs the examples, and draws their losses into docs/images/examples.

    python tools/draw_examples.py [NAME ...]

A name is that of an example whose command docs/examples.md has; it runs on 1
and 2 ranks. `readme` is the unchanged program of README.md, on 1, 2 and 4.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

_ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(_ROOT / "benchmarks"))

import _chart  # noqa: E402

_WIDTH, _HEIGHT, _LEFT, _TOP = 380, 150, 52, 18
_CAPTION = 16  # pixels of a line
# For each number of ranks: how it is drawn, in light and in dark.
_STYLES = {
    1: ("#9ec5f2", "#2f5f96", "stroke-width: 8; stroke-linejoin: round"),
    2: ("#0b3d91", "#d6e6ff", "stroke-width: 2"),
    4: ("#c4500c", "#ff9a5c", "stroke-width: 2; stroke-dasharray: 2 10"),
}
_LOSS = re.compile(r"(?<!val_)loss:? ([\d.e-]+)")
_COMMAND = re.compile(
    r"`((?:KERAS_BACKEND=\w+ )?hvdrun -np 2 python examples/(\w+)\.py)`"
)


def commands() -> dict[str, str]:
    """Returns the commands of docs/examples.md, by the names of examples."""
    text = (_ROOT / "docs/examples.md").read_text()
    return {name: command for command, name in _COMMAND.findall(text)}


def run(command: str, num_ranks: int) -> str:
    """Runs a command of a page on so many ranks, and returns its output."""
    environ = {**os.environ, "PYTHONPATH": str(_ROOT)}
    words = shlex.split(command)
    while "=" in words[0]:
        name, value = words.pop(0).split("=")
        environ[name] = value
    words[words.index("-np") + 1] = str(num_ranks)
    with tempfile.TemporaryDirectory() as folder:
        text = (_ROOT / "README.md").read_text()
        program = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)[0]
        Path(folder, "train.py").write_text(program)
        Path(folder, "examples").symlink_to(_ROOT / "examples")
        done = subprocess.run(
            [sys.executable, "-m", "hvd_keras.run", *words[1:]],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout}{done.stderr}")
    plain = re.sub(r"\x1b\[\d*m|\x08", "", done.stdout)
    return re.sub(r"^\[0\] ", "", plain, flags=re.M)


def losses(output: str) -> list[float]:
    """Returns the loss of each epoch."""
    lines = [
        x for x in re.split(r"[\n\r]", output) if "poch" in x or "step" in x
    ]
    return [float(found[1]) for found in map(_LOSS.search, lines) if found]


def result(output: str) -> str:
    """Returns what the last line with a figure says."""
    lines = re.findall(r"^.*[A-Za-z]{2}:? \d.*$", output, re.M)
    said = lines[-1].rpartition("/step - ")[2].rpartition(", ranks: ")
    said = (said[0] or said[2]).strip()
    return said[max(0, said.find("val_")) :]  # of a progress bar


def draw(title: str, runs: dict[int, str]) -> str:
    """Returns an SVG of what each number of ranks has printed."""
    curves = {n: losses(output) for n, output in runs.items()}
    values = [value for curve in curves.values() for value in curve]
    low, high = min(values), max(values)
    last = max(map(len, curves.values()))
    bottom = _HEIGHT - 28
    captions = [
        line
        for n, output in runs.items()
        for line in textwrap.wrap(
            f"{n} rank{'s' * (n > 1)}: {result(output)}", (_WIDTH - 70) // 6
        )
    ]
    height = _HEIGHT + _CAPTION * len(captions) + 8

    def place(index: int, value: float) -> str:
        x = _LEFT + index / (last - 1) * (_WIDTH - _LEFT - 20)
        y = _TOP + (high - value) / (high - low) * (bottom - _TOP)
        return f"{x:.1f} {y:.1f}"

    light, dark = (
        "".join(f".r{n} {{ stroke: {_STYLES[n][i]} }}\n" for n in runs)
        for i in (0, 1)
    )
    fixed = "".join(f".r{n} {{ fill: none; {_STYLES[n][2]} }}\n" for n in runs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
        f'height="{height}" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{_chart.STYLE}{fixed}{light}@media "
        f"(prefers-color-scheme: dark) {{{_chart.DARK_STYLE}{dark}}}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" '
        f'height="{height - 1}" rx="6"/>',
        f'<text class="small" x="12" y="{_TOP + 5}">{high:.2f}</text>',
        f'<text class="small" x="12" y="{bottom + 5}">{low:.2f}</text>',
        f'<text class="small" x="{_LEFT}" y="{bottom + 24}">epoch 1</text>',
        f'<text class="small" x="{_WIDTH - 20}" y="{bottom + 24}" '
        f'text-anchor="end">loss, epoch {last}</text>',
    ]
    for n, curve in curves.items():
        points = "L".join(place(i, value) for i, value in enumerate(curve))
        parts.append(f'<path class="r{n}" d="M{points}"/>')
    y = _HEIGHT - 4
    for caption in captions:
        y += _CAPTION
        if number := re.match(r"\d+(?= ranks?: )", caption):
            parts.append(f'<path class="r{number[0]}" d="M12 {y - 4}H42"/>')
        parts.append(
            f'<text class="small" x="{_LEFT}" y="{y}">'
            f"{html.escape(caption)}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(*names: str) -> None:
    found = commands()
    readme = (_ROOT / "README.md").read_text()
    (found["readme"],) = re.findall(r"^hvdrun --distribute .*$", readme, re.M)
    for name in names or found:
        sizes = (1, 2, 4) if name == "readme" else (1, 2)
        runs = {n: run(found[name], n) for n in sizes}
        picture = draw(
            f"Loss in each epoch on {', '.join(map(str, sizes))} ranks: "
            f"{found[name]}",
            runs,
        )
        target = _ROOT / f"docs/images/examples/{name}.svg"
        target.parent.mkdir(exist_ok=True)
        target.write_text(picture)
        print(name, *map(result, runs.values()), sep="\n    ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
