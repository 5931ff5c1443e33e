"""Environment variables with the registry's URL and key."""

from typing import Final

URL_VARIABLE: Final = "LIFESIGN_REGISTRY"
KEY_VARIABLE: Final = "LIFESIGN_KEY"
