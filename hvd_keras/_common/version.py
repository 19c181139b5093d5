"""The versions of this package and of the libraries that it works with."""

from __future__ import annotations

import functools
import importlib.metadata
import sys

# The module of each library, and the distributions that may have it.
_LIBRARIES = {
    "NumPy": ("numpy", ("numpy",)),
    "Keras": ("keras", ("keras",)),
    "TensorFlow": (
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly"),
    ),
    "JAX": ("jax", ("jax",)),
    "torch": ("torch", ("torch",)),
}

# The minor versions of Keras that ran, of the last one its sources: see
# docs/versions.md.
TRIED_KERAS = ("3.8", "3.10", "3.12", "3.15", "3.16")


def package_version() -> str:
    """Returns the installed version; "unknown" without an installation."""
    try:
        return importlib.metadata.version("hvd-keras")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def installed(library: str) -> tuple[str, str] | None:
    """Returns distribution and version of a library, without an import.

    Args:
        library: Its name, a key of `versions()`.

    Returns:
        None if it is not installed.
    """
    for distribution in _LIBRARIES[library][1]:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        return distribution, version
    return None


def versions() -> dict[str, dict[str, str]]:
    """Returns the versions "installed" and "loaded" of each library.

    They differ if a library comes from a source tree. A version that is not
    known is left out. Nothing is imported.
    """
    found: dict[str, dict[str, str]] = {}
    for library, (module, _) in _LIBRARIES.items():
        found[library] = {}
        distribution = installed(library)
        if distribution is not None:
            found[library]["installed"] = distribution[1]
        loaded = getattr(sys.modules.get(module), "__version__", None)
        if isinstance(loaded, str):
            found[library]["loaded"] = loaded
    return found
