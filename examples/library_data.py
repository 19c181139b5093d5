"""Real texts and imports for the examples: those of the Python libraries here.

Keras, NumPy and scikit-learn are installed wherever the examples run.
"""

from __future__ import annotations

import collections
import importlib.util
import pathlib
import re
from collections.abc import Iterable, Iterator

import numpy as np

LIBRARIES = ("keras", "numpy", "sklearn")
_DOCSTRING = re.compile(r'^ +r?"""(.+?)"""', re.M | re.S)
_IMPORT = re.compile(r"^ *(?:from (\S+) import|import (\S+))", re.M)
_WORD = re.compile(r"[a-z]+")
# With these words it would be too easy.
_NAMES = {"keras", "layers", "np", "numpy", "scikit", "sklearn", "tf"}

Texts = tuple[np.ndarray, np.ndarray]  # int32 (n, words), int32 labels


def texts(num_words: int, vocabulary_size: int) -> tuple[Texts, Texts]:
    """Returns docstrings as numbers of words, for training and for the test.

    Args:
        num_words: Words of a text; 0 fills up a shorter one.
        vocabulary_size: Numbers that a word may have. 1 is a rare word.

    Returns:
        Texts for training and for the test. A label is the index of the
        library in `LIBRARIES`.
    """
    found: dict[tuple[str, ...], int] = {}  # a text stands there once
    for label, library in enumerate(LIBRARIES):
        for source in _sources(library):
            for text in _DOCSTRING.findall(source):
                words = _WORD.findall(text.lower())
                kept = [word for word in words if word not in _NAMES]
                if len(kept) >= 8:
                    found.setdefault(tuple(kept[:num_words]), label)
    rows = list(found.items())
    order = np.random.default_rng(0).permutation(len(rows))
    rows = [rows[i] for i in order]
    num_test = len(rows) // 5
    counts = collections.Counter(
        word for words, _ in rows[num_test:] for word in words
    )
    common = [word for word, _ in counts.most_common(vocabulary_size - 2)]
    numbers = {word: number for number, word in enumerate(common, start=2)}
    tokens = np.zeros((len(rows), num_words), np.int32)
    for row, (text_words, _) in zip(tokens, rows, strict=True):
        row[: len(text_words)] = [numbers.get(word, 1) for word in text_words]
    labels = np.array([label for _, label in rows], np.int32)
    return (
        (tokens[num_test:], labels[num_test:]),
        (tokens[:num_test], labels[:num_test]),
    )


def imports() -> tuple[np.ndarray, int, list[str]]:
    """Returns which source file imports which module.

    Returns:
        Pairs of the numbers of a file and of a module, int32 (n, 2), each pair
        once; the number of files; the names of the modules. Each file imports
        at least 3 of the modules.
    """
    modules_of = [
        {one or other for one, other in _IMPORT.findall(source)}
        for library in LIBRARIES
        for source in _sources(library)
    ]
    counts = collections.Counter(m for found in modules_of for m in found)
    names = sorted(module for module, n in counts.items() if n >= 5)
    numbers = {name: number for number, name in enumerate(names)}
    files = [
        sorted(numbers[m] for m in found if m in numbers)
        for found in modules_of
    ]
    files = [found for found in files if len(found) >= 3]
    pairs = [(f, m) for f, found in enumerate(files) for m in found]
    return np.array(pairs, np.int32), len(files), names


def _sources(library: str) -> Iterator[str]:
    """Yields the text of each file of a library, without its tests."""
    spec = importlib.util.find_spec(library)
    folders: Iterable[str] = (spec and spec.submodule_search_locations) or ()
    for folder in map(pathlib.Path, folders):
        for path in sorted(folder.rglob("*.py")):
            if "test" not in str(path.relative_to(folder)):
                yield path.read_text(encoding="utf-8")
