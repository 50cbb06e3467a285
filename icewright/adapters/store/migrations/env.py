"""Alembic's entry: runs on the connection that `icewright.adapters.store.database.upgrade` hands over."""

from alembic import context

from icewright.adapters.store.schema import SCHEMA

context.configure(connection=context.config.attributes["connection"], target_metadata=SCHEMA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
