"""Templates: every value is escaped, and text cannot reorder its line."""

import pytest
from jinja2 import Environment, UndefinedError

from lifesign.serving.templates import template_environment


@pytest.fixture
def environment() -> Environment:
    return template_environment("lifesign.census")


def test_values_are_escaped(environment: Environment) -> None:
    assert environment.from_string("<p>{{ name }}</p>").render(name="<b>&") == "<p>&lt;b&gt;&amp;</p>"


def test_characters_that_reorder_text_are_replaced(environment: Environment) -> None:
    assert environment.from_string("{{ name }}").render(name="a\u202eb") == "a\ufffdb"


def test_html_of_a_macro_is_not_escaped_twice(environment: Environment) -> None:
    source = "{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}{{ bold(name) }}"
    assert environment.from_string(source).render(name="<") == "<b>&lt;</b>"


def test_an_undefined_name_is_an_error(environment: Environment) -> None:
    with pytest.raises(UndefinedError):
        environment.from_string("{{ name }}").render()
