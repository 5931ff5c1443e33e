"""Marker file of the database on the server's host: the server refuses to start on a replaced database."""
