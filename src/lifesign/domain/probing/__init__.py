"""When a target is probed, by which prober, and when its result was observed."""
