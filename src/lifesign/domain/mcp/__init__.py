"""Model Context Protocol: what a prober sends to a server, and what its answers mean."""
