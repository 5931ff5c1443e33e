"""Which targets does a directory list? One file per format."""
