"""A2A agent cards, interfaces and variants of messages, and the outcome of responses and event streams."""
