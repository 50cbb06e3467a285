"""Everything that users and operators start: configuration, wiring, command line, service, web and demo."""
