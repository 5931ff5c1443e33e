"""Users of the servers on this machine, for all clients that send secrets; the standard library only."""
