"""The event log: events, their hash chain, its replay, webhook signatures."""
