"""What others push: which tables changed, and how tables are read. Pure: a request body in, a closed union out."""
