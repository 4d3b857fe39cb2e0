"""How a file of an older form becomes one of the newest: alembic's scripts, one per step, in `versions/`."""
