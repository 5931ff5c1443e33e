"""Options, configuration files and identifiers that commands share."""
