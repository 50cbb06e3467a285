"""One side of a port each: catalogs, files, engines, the state store, alert channels."""
