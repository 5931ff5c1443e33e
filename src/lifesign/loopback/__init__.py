"""Users of the servers on loopback, for all clients that send secrets; the standard library only."""
