"""Can every setting of the server be given as an option and as a variable?"""

import inspect
import typing

import pytest
from typer.models import OptionInfo

from agent_health.cli.serve import PREFIX, serve
from agent_health.registry.run_server import Listening
from agent_health.registry.settings import RegistrySettings

BESIDES = {"return", "context", "_config", "show_config"}
"""Where settings come from, and how they are shown; no settings themselves."""
OPTIONS = {
    name: next(part for part in typing.get_args(hint) if isinstance(part, OptionInfo))
    for name, hint in typing.get_type_hints(serve, include_extras=True).items()
    if name not in BESIDES
}


def test_every_setting_has_its_option_and_there_are_no_others() -> None:
    settings = set(RegistrySettings.model_fields) | set(inspect.signature(Listening).parameters)
    assert set(OPTIONS) == settings


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_variable_of_the_server(name: str) -> None:
    variable = str(OPTIONS[name].envvar)
    assert variable.startswith(PREFIX)
    assert variable.removeprefix(PREFIX).lower() in {name, name.removesuffix("s")}


def test_defaults_are_the_settings_own() -> None:
    parameters = inspect.signature(serve).parameters
    own = RegistrySettings()
    for name in RegistrySettings.model_fields:
        assert parameters[name].default in {None, "", getattr(own, name)}
