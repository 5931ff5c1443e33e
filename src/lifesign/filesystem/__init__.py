"""Files that only their owner may read, and locks of files; the standard library only."""
