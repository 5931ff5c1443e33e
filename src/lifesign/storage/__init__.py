"""Keep what the registry knows, in SQLite or PostgreSQL; judge nothing.

    database.py    one transaction after another, in groups where that saves time
    tables.py      which tables are there
    migrations/    how a database of an older version is brought up to date

The other files hold the statements, one file per subject. They take a transaction and facts, and
return facts: SQL fetches, the package's root judges.
"""
