"""One probe of one target: card, interface, health document, message."""
