"""Output of commands: tables, pages of records, progress, logs."""
