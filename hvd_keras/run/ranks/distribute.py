"""The environment of scripts that know nothing of ranks."""

from __future__ import annotations

import random

from hvd_keras._common.horovod_site import python_path
from hvd_keras.run.ranks.environment import SITE
from hvd_keras.run.spec import JobSpec
from hvd_keras.run.usage import UsageError


def prepare(spec: JobSpec, environ: dict[str, str]) -> None:
    """Adds what makes each Python process of a job a rank.

    Raises:
        UsageError: Such a job cannot be distributed so.
    """
    if spec.elastic is not None:
        raise UsageError(
            "`--distribute` and `--keras-distribution` need a fixed number of "
            "ranks. Received: an elastic job (--min-np). Its script calls "
            "`hvd.elastic.fit`."
        )
    environ["PYTHONPATH"] = python_path(environ, SITE)
    seed = str(random.SystemRandom().getrandbits(31))
    seed = environ.setdefault("HVD_DISTRIBUTE_SEED", seed)
    if environ["HVD_DISTRIBUTE"] == "script":
        # Sets of texts then have the same order on all ranks.
        environ.setdefault("PYTHONHASHSEED", seed)
