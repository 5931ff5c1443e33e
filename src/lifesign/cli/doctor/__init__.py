"""`lifesign doctor`: checks of an installation and their results."""
