"""Checks the recipes for containers and packages, without running them.

    python tools/check_recipes.py [CRD]

CRD is the file that defines TrainJob, in a clone of Kubeflow Trainer:
manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml. Without it the TrainJob
is left out. It needs the extra `recipes`.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_MANIFESTS = _ROOT / "docker" / "kubernetes"
_SCRIPTS = Path(sysconfig.get_path("scripts"))
# What conda-forge would choose.
_VARIANTS = """
python: ["3.10.* *_cpython", "3.13.* *_cp313"]
cxx_compiler: [gxx]
cxx_compiler_version: ["14"]
c_stdlib: [sysroot]
c_stdlib_version: ["2.28"]
"""


def check_dockerfile() -> None:
    command = [_SCRIPTS / "hadolint", _ROOT / "docker" / "Dockerfile"]
    subprocess.run(command, check=True)


def check_job() -> None:
    program = _SCRIPTS / "kubernetes-validate"
    subprocess.run([program, "--strict", _MANIFESTS / "job.yaml"], check=True)


def check_trainjob(crd: Path) -> None:
    import jsonschema
    import yaml

    (version,) = yaml.safe_load(crd.read_text())["spec"]["versions"]
    schema = _strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(
        yaml.safe_load((_MANIFESTS / "trainjob.yaml").read_text()), schema
    )


def _strict(schema: Any) -> Any:
    """Refuses fields that a schema of Kubernetes does not know."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _strict(part) for name, part in schema.items()}
    if found.pop("x-kubernetes-int-or-string", False):
        found.pop("type", None)
        found["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if found.get("type") == "object" and "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


def check_apptainer() -> None:
    from spython.main.parse.parsers import SingularityParser

    parsed = SingularityParser(str(_ROOT / "docker" / "apptainer.def"))
    (stage,) = parsed.recipe.values()
    for part in (stage.fromHeader, stage.install, stage.cmd, stage.test):
        if not part:
            raise SystemExit("apptainer.def lacks a part.")


def check_conda() -> None:
    import rattler_build

    path = _ROOT / "recipes" / "conda" / "recipe.yaml"
    linux = rattler_build.PlatformConfig(target_platform="linux-64")
    rendered = rattler_build.Stage0Recipe.from_file(path).render(
        rattler_build.VariantConfig.from_yaml(_VARIANTS),
        rattler_build.RenderConfig(platform=linux),
    )
    if len(rendered) != 2:
        raise SystemExit(f"Expected a package for each Python: {rendered}")


def main() -> None:
    check_dockerfile()
    check_job()
    check_apptainer()
    check_conda()
    if len(sys.argv) > 1:
        check_trainjob(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
