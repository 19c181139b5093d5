"""Whether the unit tests notice a changed operator, comparison or number.

`make mutants` changes one at a time in the modules that [tool.mutmut] of
pyproject.toml names, and runs the tests that reach it. It prints how many were
noticed, by module, and what was not; it ends with 1 if a module has fewer than
the share that it must have. One that is stopped goes on where it was, unless
sources have changed. A pattern of names runs some alone:

    build/extras/mutants/bin/python tools/mutants.py 'hvd_keras.data._deal*'
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

from mutmut import __main__ as mutmut
from mutmut.mutation import file_mutation, mutators
from mutmut.stats import status_by_exit_code

_LEAST_SHARE = 0.85
_FOLDER = Path("mutants")  # of mutmut
# Words of messages are not tested for each letter, and types know of None.
_CHANGES = {
    mutators.operator_number,
    mutators.operator_name,
    mutators.operator_swap_op,
    mutators.operator_remove_unary_ops,
    mutators.operator_keywords,
    mutators.operator_augmented_assignment,
    mutators.operator_if_exp,
}


def main() -> int:
    """Runs mutmut, then judges."""
    _forget_other_sources()
    kept = [pair for pair in mutators.mutation_operators if pair[1] in _CHANGES]
    file_mutation.mutation_operators[:] = kept
    mutmut.cli(["run", *sys.argv[1:]], standalone_mode=False)
    return judge()


def _forget_other_sources() -> None:
    """Removes results of other sources or tests, which mutmut would keep."""
    sources = [Path("pyproject.toml"), Path(__file__)]
    for folder in ("hvd_keras", "tests"):
        sources += sorted(Path(folder).rglob("*.py"))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.read_bytes())
    mark = _FOLDER / "of_sources"
    if not mark.exists() or mark.read_text() != digest.hexdigest():
        shutil.rmtree(_FOLDER, ignore_errors=True)
        _FOLDER.mkdir()
        mark.write_text(digest.hexdigest())


def judge() -> int:
    """Prints the shares; returns the exit status."""
    status, survivors = 0, []
    for meta in sorted(_FOLDER.rglob("*.meta")):
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        found = {
            name: status_by_exit_code[code]
            for name, code in codes.items()
            if code is not None  # not run
        }
        if not found:
            continue
        lost = [
            f"{name} ({told})"
            for name, told in found.items()
            if told not in ("killed", "timeout")
        ]
        share = 1 - len(lost) / len(found)
        module = meta.relative_to(_FOLDER).with_suffix("")
        print(f"{module}: {share:.1%} of {len(found)} noticed")
        status |= share < _LEAST_SHARE
        survivors += lost
    for name in survivors:
        print("not noticed:", name)
    return status


if __name__ == "__main__":
    sys.exit(main())
