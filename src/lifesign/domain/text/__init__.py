"""Formatting of counts, durations, times and text of strangers."""
