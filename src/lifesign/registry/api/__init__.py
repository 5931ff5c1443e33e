"""From a request to an operation and back: authentication, bodies, cursors, errors."""
