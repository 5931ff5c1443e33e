"""Small types and functions that all other rules use."""
