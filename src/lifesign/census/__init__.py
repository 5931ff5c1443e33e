"""Counts the results of a directory and writes the reports."""
