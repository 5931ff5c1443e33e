"""Workflow files and other YAML documents, with line numbers for their errors."""
