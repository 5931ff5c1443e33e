"""Alembic migrations: versions/ has one file per step, `storage/engine/schema_version.py` runs them.

From the first release on a step is never changed or squashed.
`python -m lifesign.storage.migrations "what it does"` writes a new step.
"""
