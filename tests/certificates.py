"""Makes certificates for tests of TLS, with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make(folder: Path) -> dict[str, str]:
    """Returns the settings HVD_TLS_* for a new authority and certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl (apt-get install openssl)")
    folder.mkdir(exist_ok=True)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    for command in (
        f"req -x509 {key} -subj /CN=ca -keyout ca.key -out ca.pem",
        f"req {key} -subj /CN=job -keyout job.key -out job.csr",
        "x509 -req -in job.csr -CA ca.pem -CAkey ca.key -days 2 -out job.pem "
        "-set_serial 1",
    ):
        subprocess.run(
            ["openssl", *command.split()],
            cwd=folder,
            check=True,
            capture_output=True,
        )
    return {
        "HVD_TLS_CERT": str(folder / "job.pem"),
        "HVD_TLS_KEY": str(folder / "job.key"),
        "HVD_TLS_CA": str(folder / "ca.pem"),
    }
