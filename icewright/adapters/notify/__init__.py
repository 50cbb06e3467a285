"""Channels that alerts are told to."""
