"""What does the API look like to people? (`GET /docs`)

The OpenAPI document as one page of plain HTML, made on the server: no script, nothing fetched from
anywhere, readable without a key. All text of the document is escaped, whoever wrote it.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from lifesign.domain.text.pluralize import pluralize
from lifesign.registry.openapi.document import ROLES_MEMBER

METHODS = ("get", "post", "put", "patch", "delete")
MAX_NESTING = 4
"""Of schemas that are shown inside one another; deeper ones are named."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --link: #0a58ca; }
@media (prefers-color-scheme: dark) { :root { --link: #8ab4f8; } }
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem;
  overflow-wrap: break-word; }
a { color: var(--link); }
nav ul { columns: 20rem; list-style: none; padding: 0; }
nav li { break-inside: avoid; padding: .125rem 0; }
section { border-top: 1px solid var(--line); margin-top: 2rem; }
article { margin: 2rem 0 3rem; }
h3 { margin-bottom: .25rem; }
h3 code { font-size: 1rem; font-weight: normal; }
code, pre { background: var(--soft); border-radius: .25rem; font: .875em/1.5 ui-monospace, monospace; }
code { padding: .0625rem .25rem; }
pre { overflow-x: auto; padding: .75rem; }
pre code { background: none; padding: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .375rem .5rem .375rem 0; text-align: left;
  vertical-align: top; }
td table { margin: .25rem 0 0 .5rem; }
.method { border: 1px solid var(--line); border-radius: .25rem; font-weight: bold; padding: 0 .375rem; }
"""

_STYLE_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

_CODE = re.compile(r"`([^`]+)`")


def api_page(document: Mapping[str, Any]) -> bytes:
    """Return the page that shows an OpenAPI document of ours."""
    return "\n".join(_Page(document).lines()).encode()


class _Page:
    """One document on its way into a page."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._schemas: Mapping[str, Any] = document["components"]["schemas"]

    def lines(self) -> Iterator[str]:
        info = self._document["info"]
        yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
        yield f"<title>{escape(info['title'])}</title>"
        yield f"<style>{STYLE}</style>\n</head>\n<body>\n<header>"
        yield f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>"
        yield _prose(info["description"])
        yield '<p>For programs: <a href="openapi.json">openapi.json</a></p>\n</header>'
        subjects = self._subjects()
        yield '<nav aria-label="Operations">'
        for subject, operations in subjects.items():
            yield f"<h2>{_title(subject)}</h2>\n<ul>"
            for method, path, operation in operations:
                yield (
                    f'<li><a href="#{escape(operation["operationId"])}"><code>{method.upper()} '
                    f"{_breakable(path)}</code></a></li>"
                )
            yield "</ul>"
        yield "</nav>\n<main>"
        for subject, operations in subjects.items():
            yield f"<section>\n<h2>{_title(subject)}</h2>"
            for method, path, operation in operations:
                yield from self._operation(method, path, operation)
            yield "</section>"
        yield from self._deliveries()
        yield from self._refusals()
        yield "</main>\n</body>\n</html>\n"

    def _subjects(self) -> dict[str, list[tuple[str, str, dict[str, Any]]]]:
        subjects: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
            tag["name"]: [] for tag in self._document["tags"]
        }
        for path, item in self._document["paths"].items():
            for method in METHODS:
                if method in item:
                    operation = item[method]
                    parameters = [*item.get("parameters", ()), *operation.get("parameters", ())]
                    shown = {**operation, "parameters": parameters}
                    subjects[operation["tags"][0]].append((method, path, shown))
        return subjects

    def _operation(self, method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
        name = escape(operation["operationId"])
        yield f'<article id="{name}">\n<h3>{escape(operation["summary"])}</h3>'
        yield (
            f'<p><span class="method">{method.upper()}</span> <code>{_breakable(path)}</code> '
            f'<a href="#{name}" aria-label="Link to this operation">#</a></p>'
        )
        yield _prose(operation.get("description", ""))
        yield f"<p>{self._keys(operation)}</p>"
        if operation["parameters"]:
            yield "<h4>Parameters</h4>"
            yield from _table(("name", "in", "type", ""), map(self._parameter, operation["parameters"]))
        if "requestBody" in operation:
            (media,) = operation["requestBody"]["content"].values()
            yield "<h4>Body</h4>"
            yield from self._schema(media["schema"], MAX_NESTING)
        yield "<h4>Answer</h4>"
        for status, answer in operation["responses"].items():
            if status < "300":
                yield f"<p><code>{escape(status)}</code> {_inline(answer['description'])}</p>"
                for media_type, media in answer.get("content", {}).items():
                    if media_type != "application/json":
                        yield f"<p><code>{escape(media_type)}</code></p>"
                    yield from self._schema(media["schema"], MAX_NESTING)
        refusals = [status for status in operation["responses"] if status >= "300"]
        if refusals:
            yield f"<p>Else: {', '.join(map(_status_link, refusals))}</p>"
        example = escape(_curl(method, path, operation))
        yield f"<h4>Example</h4>\n<pre><code>{example}</code></pre>\n</article>"

    def _keys(self, operation: Mapping[str, Any]) -> str:
        if not operation["security"]:
            return "Keys: none is needed."
        roles = operation.get(ROLES_MEMBER)
        if not roles:
            return "Keys: see above; which one may do it depends on the body."
        told = (
            f"{escape(role)}{' (of its own)' if extent == 'own' else ''}" for role, extent in roles.items()
        )
        return f"Keys: {', '.join(told)}."

    def _parameter(self, parameter: Mapping[str, Any]) -> tuple[str, ...]:
        words = _inline(parameter.get("description", ""))
        required = "<strong>required</strong>" if parameter["required"] and parameter["in"] != "path" else ""
        separated = "separated by commas" if parameter.get("explode") is False else ""
        about = ". ".join(part for part in (required, words.removesuffix("."), separated) if part)
        schema = parameter["schema"]
        return (
            f"<code>{escape(parameter['name'])}</code>",
            escape(parameter["in"]),
            self._type(schema),
            ". ".join(part for part in (about, _bounds(schema)) if part),
        )

    def _schema(self, schema: Mapping[str, Any], levels_left: int) -> Iterator[str]:
        """Yield a table of an object's members, or one line of anything else."""
        resolved = self._resolved(schema)
        if "description" in resolved and levels_left == MAX_NESTING:
            yield _prose(resolved["description"])
        if not resolved.get("properties"):
            yield f"<p>{self._type(schema)}</p>"
            return
        required = resolved.get("required", ())
        yield from _table(
            ("member", "type", ""),
            (
                self._member(name, member, levels_left, is_required=name in required)
                for name, member in resolved["properties"].items()
            ),
        )

    def _member(
        self, name: str, schema: Mapping[str, Any], levels_left: int, *, is_required: bool
    ) -> tuple[str, ...]:
        parts = [
            "<strong>required</strong>" if is_required else "",
            _inline(schema.get("description", "")).removesuffix("."),
            _bounds(_without_null(schema)),
        ]
        inner = self._inner(schema)
        nested = ""
        if inner is not None and levels_left > 1:
            nested = "\n".join(self._schema(inner, levels_left - 1))
        about = ". ".join(part for part in parts if part) + nested
        return f"<code>{escape(name)}</code>", self._type(schema), about

    def _inner(self, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the object that a member is, or a list of; None if it is neither."""
        schema = _without_null(schema)
        found = self._resolved(schema.get("items", schema))
        return found if found.get("properties") else None

    def _type(self, schema: Mapping[str, Any]) -> str:
        inner = _without_null(schema)
        or_null = " or null" if inner is not schema else ""
        resolved = self._resolved(inner)
        if "enum" in resolved:
            words = ", ".join(f"<code>{escape(str(value))}</code>" for value in resolved["enum"])
            return words + or_null
        if "const" in resolved:
            return f"<code>{escape(str(resolved['const']))}</code>{or_null}"
        if resolved.get("type") == "array":
            return f"list of {self._type(resolved.get('items', {}))}{or_null}"
        if resolved.get("format") == "date-time":
            return f"time (RFC 3339){or_null}"
        return escape(str(resolved.get("type", "any"))) + or_null

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = schema.get("$ref")
        return schema if reference is None else self._schemas[reference.rpartition("/")[2]]

    def _deliveries(self) -> Iterator[str]:
        """Yield the requests that the server itself sends."""
        yield "<section>\n<h2>Deliveries to webhooks</h2>"
        for item in self._document["webhooks"].values():
            operation = item["post"]
            yield f'<article id="{escape(operation["operationId"])}">'
            yield f"<h3>{escape(operation['summary'])}</h3>"
            yield _prose(operation["description"])
            yield "<h4>Headers</h4>"
            yield from _table(("name", "in", "type", ""), map(self._parameter, operation["parameters"]))
            (media,) = operation["requestBody"]["content"].values()
            yield "<h4>Body</h4>"
            yield from self._schema(media["schema"], MAX_NESTING)
            yield "<h4>Answer of the receiver</h4>"
            yield from _table(
                ("status", ""),
                (
                    (f"<code>{escape(status)}</code>", _inline(answer["description"]))
                    for status, answer in operation["responses"].items()
                ),
            )
            yield "</article>"
        yield "</section>"

    def _refusals(self) -> Iterator[str]:
        yield "<section>\n<h2>Errors</h2>"
        yield from self._schema({"$ref": "#/components/schemas/Error"}, MAX_NESTING)
        for response in self._document["components"]["responses"].items():
            name, answer = response
            status = escape(name.removeprefix("Error"))
            yield f'<p id="error-{status}"><code>{status}</code> {_inline(answer["description"])}</p>'
        yield "</section>"


def _table(heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield '<div class="wide"><table>\n<thead><tr>'
    yield "".join(f'<th scope="col">{head}</th>' if head else "<td></td>" for head in heads)
    yield "</tr></thead>\n<tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</tbody>\n</table></div>"


def _without_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a member is when it is not null; the same object if it is never null."""
    if "anyOf" not in schema:
        return schema
    others = [one for one in schema["anyOf"] if one != {"type": "null"}]
    return others[0] if len(others) == 1 else schema


_BOUNDS = (
    ("minimum", "at least {}", ""),
    ("maximum", "at most {}", ""),
    ("minLength", "at least {}", "character"),
    ("maxLength", "at most {}", "character"),
    ("minItems", "at least {} of them", ""),
    ("maxItems", "at most {} of them", ""),
)


def _bounds(schema: Mapping[str, Any]) -> str:
    parts = [
        words.format(pluralize(schema[name], noun) if noun else f"{schema[name]:,}")
        for name, words, noun in _BOUNDS
        if name in schema
    ]
    pattern = schema.get("pattern", schema.get("items", {}).get("pattern"))
    if pattern is not None:
        parts.append(f"matches <code>{escape(pattern)}</code>")
    if "default" in schema:
        parts.append(f"default <code>{escape(json.dumps(schema['default']))}</code>")
    return ", ".join(parts)


def _curl(method: str, path: str, operation: Mapping[str, Any]) -> str:
    """Return a command that does it; the key comes from the environment."""
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", str(parameter.get("example", "ID")))
    words = ["curl"] + ([] if method == "get" else [f"-X {method.upper()}"])
    lines = [" ".join([*words, f'"$REGISTRY{path}"'])]
    if operation["security"]:
        lines.append('-H "X-API-Key: $KEY"')
    for parameter in operation["parameters"]:
        if parameter["in"] == "header" and parameter["required"]:
            value = parameter["schema"].get("examples", ["4294967297"])[0]
            lines.append(f"-H '{parameter['name']}: {value}'")
    if "requestBody" in operation:
        ((media_type, media),) = operation["requestBody"]["content"].items()
        lines.append(f"-H 'Content-Type: {media_type}'")
        lines.append(f"-d '{json.dumps(media.get('example', {}))}'")
    return " \\\n  ".join(lines)


def _status_link(status: str) -> str:
    return f'<a href="#error-{escape(status)}">{escape(status)}</a>' if status >= "400" else escape(status)


def _title(subject: str) -> str:
    return escape(subject.capitalize())


def _breakable(path: str) -> str:
    """Let a long path break before its slashes."""
    return escape(path).replace("/", "<wbr>/")


def _prose(text: str) -> str:
    """Return paragraphs and one level of lists as HTML; of Markdown, nothing else but `code` is read."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith("* "):
            items = "".join(f"<li>{_inline(item)}</li>" for item in re.split(r"(?:^|\n)\* ", block)[1:])
            blocks.append(f"<ul>{items}</ul>")
        elif block:
            blocks.append(f"<p>{_inline(block)}</p>")
    return "\n".join(blocks)


def _inline(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))
