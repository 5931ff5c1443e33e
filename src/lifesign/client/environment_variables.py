"""Environment variables of lifesign, with the registry's URL and key."""

from typing import Final

VARIABLE_PREFIX: Final = "LIFESIGN_"
"""Prefix of lifesign's own variables: settings, databases, keys. Other programs do not get them."""
URL_VARIABLE: Final = "LIFESIGN_REGISTRY"
KEY_VARIABLE: Final = "LIFESIGN_KEY"
