"""Channels that alerts are sent to."""
