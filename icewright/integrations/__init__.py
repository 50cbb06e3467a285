"""Icewright in the tools of others. Nothing here imports the rest: it needs the standard library and the tool alone."""
