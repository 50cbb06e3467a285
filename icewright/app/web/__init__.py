"""The HTTP server: what others push, and what watches the service ask for."""
