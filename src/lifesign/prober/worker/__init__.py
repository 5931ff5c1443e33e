"""The main loop: claims shards, schedules probes, reports results."""
