"""How did a database of an older version become one of this version?

env.py           what Alembic runs a migration in: always a transaction that somebody else began
versions/        one file per step, never changed once it was released; `schema.py` says how they are run
script.py.mako   what a new step looks like: `python -m lifesign.storage.migrations "what it does"`
"""
