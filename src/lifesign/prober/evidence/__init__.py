"""Evidence of findings, and files of observations."""
