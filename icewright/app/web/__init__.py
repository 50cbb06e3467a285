"""Serve the REST API, the pages, pushed events, probes and metrics over HTTP."""
