"""One file per command or group of commands."""
