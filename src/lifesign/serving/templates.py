"""Jinja templates in which every value is escaped."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from lifesign.domain.text.safe_text import harmless


def template_environment(package: str) -> Environment:
    """Return the environment of the templates in `templates/` of a package.

    Values are escaped as HTML, and characters that reorder or hide text are replaced. An undefined name
    raises `jinja2.UndefinedError`.
    """
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def _harmless(value: object) -> object:
    """Replace such characters in a text; markup was created from text that was already checked."""
    return harmless(value, keep="\n") if isinstance(value, str) and not hasattr(value, "__html__") else value
