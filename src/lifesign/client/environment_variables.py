"""Which variables of the environment say where the registry is, and by which key it is asked?"""

from typing import Final

URL_VARIABLE: Final = "LIFESIGN_REGISTRY"
KEY_VARIABLE: Final = "LIFESIGN_KEY"
