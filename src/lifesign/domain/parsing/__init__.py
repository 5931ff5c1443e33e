"""JSON of peers: lenient reading and limits."""
