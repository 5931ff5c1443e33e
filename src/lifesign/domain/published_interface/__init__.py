"""Published interface of a target, and the changes between two versions of it."""
