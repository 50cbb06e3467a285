"""The state store: SQLite for one machine, PostgreSQL for many; the same statements for both."""
