"""Shows collectives to TensorFlow's profiler."""

from __future__ import annotations

import ctypes
import os
import types

_LIBRARY = "libtensorflow_framework.so.2"
_RECORD = "_ZN3tsl8profiler15TraceMeRecorder6RecordEONS1_5EventE"
_LEVEL = "_ZN3tsl8profiler8internal13g_trace_levelE"


def show_to_tensorflow(core: types.ModuleType) -> None:
    """Lets the profiler of the TensorFlow that is loaded record collectives.

    Its library exports what it takes. If another version does not, its traces
    lack the collectives.
    """
    try:
        library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD)
        record = ctypes.cast(getattr(library, _RECORD), ctypes.c_void_p).value
        level = ctypes.addressof(ctypes.c_int.in_dll(library, _LEVEL))
    except (OSError, AttributeError, ValueError):
        return
    if record:
        core.set_trace_me(record, level)
