"""What a target publishes for its callers, and what changes between two versions of it."""
