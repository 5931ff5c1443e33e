"""The status of an agent: transitions, heartbeat timeouts, verdicts, suspension."""
