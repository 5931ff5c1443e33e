"""Charts of histories as SVG."""
