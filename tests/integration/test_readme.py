"""The README's Python runs as it stands."""

from __future__ import annotations

import pathlib
import re
import textwrap

import jobs

_README = pathlib.Path(__file__).parents[2] / "README.md"


def test_the_four_lines_train() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", _README.read_text(), re.S)
    # A reader has a model and data already.
    prelude = textwrap.dedent(
        """
        import keras
        import numpy as np

        x, y = np.ones((70, 4), "f4"), np.arange(70) % 3

        def build_model():
            return keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(3, "softmax")]
            )
        """
    )
    code = f"{prelude}\n{snippet}\nprint('trained on', hvd.size())\n"
    job = jobs.run_python(2, code, seconds=90)
    assert job.status == 0, job.stdout + job.stderr
    assert job.lines(0)[-1] == "trained on 2"
