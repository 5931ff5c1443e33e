"""A2A agent cards, their interfaces and the variants of messages."""
