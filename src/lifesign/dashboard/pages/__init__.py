"""One file per page, with its forms."""
