"""The benchmark of `compute_statistics`; to every other script of this folder, Python's module of this name.

A script finds files beside it before Python's own modules. What imports `statistics` there, such as the standard
library, must get that of Python.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

if __name__ == "__main__":
    from benchmarks.kit.spark_statistics import main

    main()
elif __name__ == "statistics":
    spec = spec_from_file_location(__name__, Path(sysconfig.get_path("stdlib"), "statistics.py"))
    if spec is None or spec.loader is None:
        raise ImportError(f"Python has no module {__name__}")
    sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[__name__])
