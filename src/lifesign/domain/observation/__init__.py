"""Results of probes, their meaning, and the age of evidence."""
