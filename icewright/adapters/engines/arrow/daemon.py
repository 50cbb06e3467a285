"""Spark's Python daemon with all that a task of ours imports: the workers that it forks have it at once.

Spark lets a worker end that had nothing to do for a minute; without this each that comes after it would load it anew.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager  # noqa: TID253 - only Spark runs this module

import icewright.adapters.engines.arrow.rewriting  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
