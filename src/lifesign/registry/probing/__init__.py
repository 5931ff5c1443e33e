"""Operations of probers: shards, observations, witnesses, the monitor."""
