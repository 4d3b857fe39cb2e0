"""What alembic runs to migrate: the steps, over the connection that it is handed, in the transaction around it."""

from __future__ import annotations


def run() -> None:
    """Called while alembic has this file loaded."""
    from alembic import context

    context.configure(connection=context.config.attributes["connection"])
    with context.begin_transaction():
        context.run_migrations()


if __name__ == "env_py":  # the name under which alembic loads it; any other import does nothing
    run()
