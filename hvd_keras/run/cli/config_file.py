"""Options of hvdrun in a file: `--config FILE`, and `--print-config`.

The keys are the long options, without their dashes, and `command`; a table
`[env]` has variables, as `-x NAME=VALUE`. A file becomes arguments that come
before those of the command line. So the parser alone knows the options.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from hvd_keras.config import did_you_mean
from hvd_keras.run.usage import UsageError

_NOT_IN_FILES = ("help", "version", "config", "print_config", "command")


def read(parser: argparse.ArgumentParser, path: str) -> list[str]:
    """Returns the arguments that a file stands for, and its command last.

    Raises:
        UsageError: It is no such file.
    """
    try:
        with open(path, "rb") as file:
            table: dict[str, Any] = _toml().load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"error: `--config {path}`: {error}") from None
    actions = _actions(parser)
    words = []
    command = table.pop("command", [])
    env = table.pop("env", {})
    for name, value in env.items() if isinstance(env, dict) else [("", env)]:
        if not isinstance(value, str | float | int) or isinstance(value, bool):
            raise UsageError(
                f"error: variables of `[env]` in {path} must be text or "
                f"numbers. Received: {name} = {value!r}."
            )
        words += ["-x", f"{name}={value}"]
    for key, value in table.items():
        if key not in actions:
            raise UsageError(
                f"error: `{key}` in {path} must be an option of hvdrun."
                f"{did_you_mean(key, actions)}"
            )
        words += _words(path, key, actions[key], value)
    if isinstance(command, str):
        command = shlex.split(command)
    if not isinstance(command, list):
        raise UsageError(
            f"error: `command` in {path} must be text or a list. Received: "
            f"{command!r}."
        )
    return [*words, "--", *map(str, command)] if command else words


def render(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """Returns a file with what a command line says."""
    lines, env = [], {}
    for key, action in _actions(parser).items():
        value = getattr(options, action.dest)
        if value == action.default:
            continue
        if action.dest == "export":
            pairs = [one.partition("=") for one in value]
            env = {name: text for name, equals, text in pairs if equals}
            value = [name for name, equals, _ in pairs if not equals]
            if not value:
                continue
        elif isinstance(value, list | tuple) and not action.nargs:
            is_words = action.type is shlex.split
            value = shlex.join(value) if is_words else ",".join(map(str, value))
        lines.append(f"{key} = {_text(value)}")
    command = options.command
    command = command[1:] if command[:1] == ["--"] else command
    if command:
        lines.append(f"command = {_text(command)}")
    if env:
        lines += ["", "[env]"]
        for name, text in env.items():
            is_bare = re.fullmatch(r"[\w-]+", name, re.ASCII)
            lines.append(f"{name if is_bare else _text(name)} = {_text(text)}")
    return "\n".join(lines)


def _toml() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            pass
    raise UsageError(
        "error: `--config` needs Python 3.11 or later, or `pip install tomli`."
    )


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Returns the options that a file may have, by the first long name."""
    found = {}
    for action in parser._actions:
        if action.dest in _NOT_IN_FILES:
            continue
        names = [name for name in action.option_strings if name[:2] == "--"]
        found[(names or action.option_strings)[0].lstrip("-")] = action
    return found


def _words(
    path: str, key: str, action: argparse.Action, value: Any
) -> Iterator[str]:
    """Yields an option and its value as they stand on a command line."""
    where = f"{path}: {key}"
    name = f"--{key}" if len(key) > 1 else f"-{key}"
    is_list = isinstance(value, list)
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(
                f"error: `{where}` must be true or false. Received: {value!r}."
            )
        if value:
            yield name
        elif isinstance(action, argparse.BooleanOptionalAction):
            yield f"--no-{key}"
    elif isinstance(value, bool | dict):
        raise UsageError(
            f"error: `{where}` must be a value. Received: {value!r}."
        )
    elif action.dest == "export":
        for one in value if is_list else [value]:
            yield from (name, str(one))
    elif is_list and action.nargs:
        yield from (name, *map(str, value))
    else:
        text = ",".join(map(str, value)) if is_list else str(value)
        yield from (name, text) if text[:1] != "-" else (f"{name}={text}",)


def _text(value: Any) -> str:
    """Returns a value as TOML writes it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
