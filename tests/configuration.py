"""The configuration of a lakehouse in one folder, for tests that make one."""

from __future__ import annotations

CONFIG = """\
state: sqlite:///state.db
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {{uri: "sqlite:///{home}/catalog.db", warehouse: "file://{home}/warehouse"}}
cache: {{folder: "{home}/cache"}}
"""
