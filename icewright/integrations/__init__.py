"""Integrations with orchestrators. They import only the standard library and the orchestrator, and run the command."""
