"""An error's gist is what its text says, not what frameworks put around it."""

from __future__ import annotations

import pytest

from hvd_keras._job.exit_hooks import describe

_LAYER = (
    "Exception encountered when calling Reshape.call().\n\n"
    "\x1b[1mThe total size must be unchanged.\x1b[0m\n\n"
    "Arguments received by Reshape.call():\n  • inputs=..."
)


@pytest.mark.parametrize(
    ("text", "gist"),
    [
        ("odd\nmore", "ValueError: odd"),
        (
            _LAYER,
            "ValueError: The total size must be unchanged. (in Reshape.call())",
        ),
        (
            'in user code:\n\n    File "a.py", line 9, in step  *\n'
            "        f()\n\n    ValueError: ranks: odd\n    more",
            "ValueError: ranks: odd",
        ),
        (
            'in user code:\n\n    File "a.py", line 9, in step  *\n'
            "        f()\n\n    ValueError: " + _LAYER,
            "ValueError: The total size must be unchanged. (in Reshape.call())",
        ),
        (
            'in user code:\n\n    File "a.py", line 9, in step  *\n'
            "        f()\n\n    ValueError: odd\n    Received: x",
            "ValueError: odd",
        ),
        (
            "Graph execution error:\n\nOSError: odd\n"
            'Traceback (most recent call last):\n\n  File "a.py", line 9, in f'
            "\n    g()\n\nOSError: odd\n\n\n\t [[{{node PyFunc}}]]\n",
            "ValueError: OSError: odd",
        ),
        (
            "Exception encountered when calling Check.call().\n\n"
            "\x1b[1mCould not infer the shape. Error encountered:\n\n"
            "not ready\x1b[0m\n\nArguments received by Check.call():",
            "ValueError: not ready (in Check.call())",
        ),
        ("in user code:", "ValueError: in user code:"),
        ("", "ValueError"),
    ],
)
def test_gists(text: str, gist: str) -> None:
    assert describe(ValueError, ValueError(text)) == gist


def test_an_error_of_a_program_of_jax_is_that_of_its_collective() -> None:
    kind = type("JaxRuntimeError", (RuntimeError,), {})
    text = "INTERNAL: Error dispatching computation: hvd_keras.exceptions."
    error = kind(f"{text}StalledError: rank 1 has not come")
    assert describe(kind, error) == "StalledError: rank 1 has not come"
    assert describe(kind, kind("another")) == "JaxRuntimeError: another"
