"""Alembic migrations: versions/ has one file per step, `storage/engine/schema.py` runs them.

`python -m lifesign.storage.migrations "what it does"` writes a new step.
"""
