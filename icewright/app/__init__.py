"""Processes and people: configuration, wiring, command line, demo."""
