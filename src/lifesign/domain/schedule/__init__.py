"""Schedule of probes, share of each prober, and retirement of targets that left a directory."""
