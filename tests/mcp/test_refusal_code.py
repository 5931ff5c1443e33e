import re

from tests.support.servers import REPOSITORY

from lifesign.mcp.refusal_code import ToolRefusalCode


def test_each_refusal_code_is_in_one_table() -> None:
    pages = "\n".join((REPOSITORY / "docs" / page).read_text() for page in ("mcp.md", "tool-proxy.md"))
    tables = re.split(r"^\| code \|.*\n", pages, flags=re.MULTILINE)[1:]
    found = {
        code
        for table in tables
        for code in re.findall(r"^\| `(\w+)` ", table.partition("\n\n")[0], re.MULTILINE)
    }
    assert found == set(ToolRefusalCode)
