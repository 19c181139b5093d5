"""Makes `import horovod` import hvd_keras from here on in this process.

    import hvd_keras.compat.horovod
    import horovod.tensorflow.keras as hvd

Python then finds the package `horovod` in `_site`, beside this file.
`hvdrun --horovod-compat` puts the same folder on the PYTHONPATH of the ranks.
Processes that the ranks start find it too.
"""

from __future__ import annotations

import sys

from hvd_keras.run.ranks.horovod_compat import SITE


def _install() -> None:
    loaded = sys.modules.get("horovod")
    file = getattr(loaded, "__file__", "") or ""
    if loaded is not None and not file.startswith(SITE):
        raise ImportError(
            "`hvd_keras.compat.horovod` must be imported before `horovod`. "
            f"Received: a process with the horovod of {file!r}."
        )
    if SITE not in sys.path:
        sys.path.insert(0, SITE)


_install()
