"""Spark's Python daemon with the kernel's modules imported, so that forked workers need not import them.

Spark ends a worker that is idle for a minute; without this daemon each new worker would import the modules again.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager  # noqa: TID253 - only Spark runs this module

import icewright.adapters.engines.arrow.rewriting  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
