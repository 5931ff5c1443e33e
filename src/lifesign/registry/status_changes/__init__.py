"""Changes of status that cascade from agents to leases to tasks, with their events."""
