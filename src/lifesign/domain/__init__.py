"""Pure rules: time and facts in, a value out. No I/O, clock, randomness, logging or concurrency."""
