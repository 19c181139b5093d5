"""A repository with the headers of Python and pybind11 found on the machine."""

_FIND = """
import sysconfig
try:
    import pybind11
    print(pybind11.get_include())
except ImportError:
    print("")
print(sysconfig.get_path("include"))
print(sysconfig.get_config_var("EXT_SUFFIX"))
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob([
        "python/**/*.h",
        "pybind11/**/*.h",
    ]),
    includes = [
        "python",
        "pybind11",
    ],
)
"""

def _python_configure(ctx):
    python = ctx.os.environ.get("PYTHON_BIN_PATH") or ctx.which("python3")
    found = ctx.execute([python, "-c", _FIND])
    if found.return_code:
        fail("%s failed: %s" % (python, found.stderr))
    pybind11, headers, suffix = found.stdout.strip("\n").split("\n")
    if not pybind11:
        fail(("%s has no pybind11. Set PYTHON_BIN_PATH to a Python that has " +
              "it, as in `PYTHON_BIN_PATH=.venv/bin/python bazel build ...`; " +
              "`bazel build //:native` does without.") % python)
    ctx.symlink(headers, "python")
    ctx.symlink(pybind11, "pybind11")
    ctx.file("BUILD", _BUILD)
    ctx.file("defs.bzl", "EXT_SUFFIX = \"%s\"\n" % suffix)

python_configure = repository_rule(
    implementation = _python_configure,
    environ = ["PYTHON_BIN_PATH"],
    local = True,
)
