"""`hvdrun --config FILE` reads what `--print-config` writes."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path

import pytest

from hvd_keras.run.cli import arguments, config_file
from hvd_keras.run.cli.arguments import CommandLine, parse
from hvd_keras.run.usage import UsageError

pytest.importorskip("tomllib")

OPTIONS = config_file._actions(arguments._parser())
ELASTIC = (
    "max-np max-restarts restart-delay elastic-timeout host-discovery-script "
    "slots-per-host blacklist-cooldown evict-stragglers"
)
NEED_OTHERS = {
    "train": ["--check"],
    "verify-steps": ["--verify"],
    "status-seconds": ["--status"],
    **{key: ["--min-np", "1"] for key in ELASTIC.split()},
}


# "train" needs another option; the other one is Horovod's, and ignored.
OF_NO_EFFECT = ("train", "autotune-gaussian-process-noise")


def values_of(action: argparse.Action) -> list[str]:
    """What may follow an option."""
    if action.nargs == 0:
        return []
    if action.choices:
        return [next(iter(action.choices))]
    if action.type is arguments._ranks:
        return ["0,2"]
    if action.type is shlex.split:
        return ["ssh -o 'A B'"]
    text = {int: "7", float: "0.5"}.get(action.type, 'a "b"=c\\é')
    return [text] * int(action.nargs or 1)


def through_file(argv: list[str], path: Path) -> CommandLine:
    printed = parse(["--print-config", *argv]).config
    assert printed is not None
    path.write_text(printed)
    return parse(["--config", str(path)])


@pytest.mark.parametrize("key", OPTIONS)
def test_each_option_comes_back(key: str, tmp_path: Path) -> None:
    action = OPTIONS[key]
    name = action.option_strings[-1]  # that which turns something off
    command = ["--", "python", "train.py", "--lr", "0.1"]
    others = [*NEED_OTHERS.get(key, []), *command]
    argv = [name, *values_of(action), *others]
    given = parse(argv)
    if name != "--no-timeline-mark-cycles":
        assert given != parse(others) or key in OF_NO_EFFECT
    assert through_file(argv, tmp_path / "job.toml") == given


def test_all_flags_have_a_value_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("np = 2\nverbose = false\ntag = false\n")
    spec = parse(["--config", str(path), "python"]).spec
    assert spec.num_ranks == 2
    assert not spec.output.is_verbose
    assert not spec.output.has_tags


def test_the_command_line_counts_more(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        'np = 2\nshow-ranks = [0, 1]\ncommand = "python train.py"\n'
        '[env]\nKERAS_BACKEND = "jax"\nTOTAL = 3\n'
    )
    spec = parse(["--config", str(path)]).spec
    assert spec.command == ("python", "train.py")
    assert spec.given_variables() == {"KERAS_BACKEND": "jax", "TOTAL": "3"}
    assert spec.output.shown_ranks == (0, 1)
    argv = ["--config", str(path), "-np", "4", "-x", "TOTAL=5", "env"]
    other = parse(argv).spec
    assert (other.num_ranks, other.command) == (4, ("env",))
    assert other.given_variables()["TOTAL"] == "5"
    assert dataclasses.replace(
        other, num_ranks=2, command=spec.command, exports=spec.exports
    ) == dataclasses.replace(spec)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("verbos = true", "did you mean|verbose"),
        ("verbose = 1", "must be true or false"),
        ("np = true", "must be a value"),
        ('np = "many"', "invalid int value"),
        ("config = 'other.toml'", "must be an option"),
        ("np = ", "job.toml"),
        ("[env]\nA = true", "text or numbers.*A = True"),
        ("env = [1]", "text or numbers"),
        ("command = 7", "text or a list"),
        (None, "No such file"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    text: str | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words):
        parse(["--config", str(path), "python"])


def test_train_needs_check() -> None:
    with pytest.raises(UsageError, match="--check"):
        parse(["--train"])
