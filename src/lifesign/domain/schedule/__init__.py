"""When a target is probed, by which prober, and when a directory's change is believed."""
