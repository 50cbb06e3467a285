"""Migrations of the state store, by Alembic."""
