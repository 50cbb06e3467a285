"""Parse events that others push: changes and reads of tables. Pure: a request body in, a closed union out."""
