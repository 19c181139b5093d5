"""Draws which parts of hvd_keras import which, into ARCHITECTURE.md.

A part is a folder or a module right below `hvd_keras/`. The picture is made
from the code, as Mermaid, and replaces the section between the two marks.

Usage: import_graph.py [--check]

With --check nothing is written; the status is 1 if the section is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grimp
from importlinter import api

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "hvd_keras"
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN = "<!-- Begin of the import graph: `make import-graph` draws it. -->"
END = "<!-- End of the import graph. -->"
MAX_BOXES = 42

Arrows = dict[str, set[str]]  # part -> the parts that it imports


def read_arrows() -> Arrows:
    """The imports of the code, those inside functions too.

    Those for type checking alone are left out, and those that the contract on
    layers in pyproject.toml ignores.
    """
    graph = grimp.build_graph(
        PACKAGE, exclude_type_checking_imports=True, cache_dir=None
    )
    for ignored in layers_contract().get("ignore_imports", []):
        importer, imported = ignored.split(" -> ")
        graph.remove_import(importer=importer, imported=imported)
    parts = sorted(graph.find_children(PACKAGE))
    for part in parts:
        graph.squash_module(part)
    return {
        name_of(part): {
            name_of(imported)
            for imported in graph.find_modules_directly_imported_by(part)
            if imported not in (part, PACKAGE)
        }
        for part in parts
    }


def layers_contract() -> dict[str, list[str]]:
    """The contract on layers, as pyproject.toml has it."""
    config = api.read_configuration(str(ROOT / "pyproject.toml"))
    contracts = {c["id"]: c for c in config["contracts_options"]}
    found: dict[str, list[str]] = contracts["layers"]
    return found


def name_of(module: str) -> str:
    """The name of a part without that of the package."""
    return module.removeprefix(f"{PACKAGE}.")


def reach_of(arrows: Arrows) -> Arrows:
    """All parts that each imports, directly or not."""
    reach: Arrows = {}

    def visit(part: str, path: tuple[str, ...]) -> set[str]:
        if part in path:
            circle = " -> ".join([*path[path.index(part) :], part])
            sys.exit(f"The imports of {PACKAGE} must be no circle: {circle}.")
        if part not in reach:
            below = [visit(p, (*path, part)) for p in arrows[part]]
            reach[part] = arrows[part].union(*below)
        return reach[part]

    for part in arrows:
        visit(part, ())
    return reach


def reduced(arrows: Arrows) -> Arrows:
    """Without the arrows that follow from others."""
    reach = reach_of(arrows)
    return {
        part: {
            imported
            for imported in imports
            if not any(imported in reach[other] for other in imports)
        }
        for part, imports in arrows.items()
    }


def render(arrows: Arrows) -> str:
    """The section between the marks."""
    if len(arrows) > MAX_BOXES:
        sys.exit(
            f"{PACKAGE} must have {MAX_BOXES} parts at most, to be read at a "
            f"glance. Received: {len(arrows)}."
        )
    layers = [
        [part.strip() for part in layer.split("|")]
        for layer in layers_contract()["layers"]
    ]
    order = [part for layer in layers for part in layer]
    lines = []
    for part in order:
        is_folder = (ROOT / PACKAGE / part).is_dir()
        lines.append(f'  {part}["{part}{"/" if is_folder else ""}"]')
    drawn = reduced(arrows)
    for part in order:
        lines += [f"  {part} --> {p}" for p in sorted(drawn[part])]
    return "\n".join(
        [
            BEGIN,
            "",
            'An arrow means "imports"; those that follow from others are '
            "not drawn.",
            "`hvd_keras/__init__.py`, which imports each name when it is used, "
            "is left out.",
            "",
            "```mermaid",
            "flowchart TD",
            *lines,
            "```",
            "",
            END,
        ]
    )


def main(argv: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        sys.exit(f"{PAGE.name} must have both marks: {BEGIN} {END}")
    updated = before + render(read_arrows()) + after
    if argv == ["--check"]:
        if updated != page:
            print(
                f"The import graph in {PAGE.name} must be that of the code: "
                "run `make import-graph`.",
                file=sys.stderr,
            )
        return int(updated != page)
    PAGE.write_text(updated)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
