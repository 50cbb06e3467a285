"""What people start: the command line, the service, the worker and the demo."""
