import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.cli.output.terminal import Colour, PageLine, has_colours, listed, write_page
from lifesign.domain.net.peer_text import MAX_LINE_CHARS, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def page(*lines: PageLine, colours: bool = False) -> str:
    stream = io.StringIO()
    write_page(stream, lines, colours=colours)
    return stream.getvalue()


@pytest.mark.parametrize(
    "harm",
    [
        "\x1b[2J",
        "\x9b31m",
        "\r",
        "\n",
        "\x07",
        "\x7f",
        "\u202e",
        "\u2066",
        "\u200b",
        "\u2028",
        "\ud800",
        "\ufeff",
    ],
)
def test_terminal_control_characters_are_replaced(harm: str) -> None:
    assert printable(f"a{harm}b") == f"a\ufffd{harm[1:]}b"


@pytest.mark.parametrize("before", ["", "x" * (MAX_LINE_CHARS - 15)])
def test_password_is_never_shown(before: str) -> None:
    assert "s3cr" not in printable(f"{before} https://u:s3cret@agent.example")


@pytest.mark.parametrize("text", ["", "plain", "Zürich 東京 🙂", "a b"])
def test_readable_text_is_unchanged(text: str) -> None:
    assert printable(text) == text


@given(st.text(st.characters()), st.booleans())
def test_a_line_stays_one_line_of_printable_text(text: str, colours: bool) -> None:  # noqa: FBT001
    shown = page(PageLine("label", text), colours=colours)
    assert shown.endswith("\n")
    assert shown[:-1].isprintable()
    assert len(shown) <= MAX_LINE_CHARS + 20


def test_labels_are_aligned_and_not_repeated() -> None:
    assert (
        page(PageLine("why", "a"), PageLine("why", "b"), PageLine("", "end"))
        == "why         a\n            b\nend\n"
    )


def test_colours_are_added_only_if_enabled() -> None:
    line = PageLine("status", "healthy", Colour.GREEN)
    assert page(line, colours=True) == "status      \x1b[32mhealthy\x1b[0m\n"
    assert page(line) == "status      healthy\n"


def test_colours_are_enabled_only_for_suitable_terminals() -> None:
    assert has_colours(Terminal(), {})
    assert has_colours(Terminal(), {"NO_COLOR": ""})
    assert not has_colours(Terminal(), {"NO_COLOR": "1"})
    assert not has_colours(Terminal(), {"TERM": "dumb"})
    assert not has_colours(io.StringIO(), {})


def test_long_list_is_cut_with_the_number_of_omitted_lines() -> None:
    lines = listed("fault", (str(number) for number in range(25)))
    assert len(lines) == 21
    assert lines[-1].text == "... and 5 more (see --json)"


def test_long_label_is_separated_from_its_text() -> None:
    stream = io.StringIO()
    write_page(stream, [PageLine("a-very-long-label", "text"), PageLine("short", "text")], colours=False)
    assert stream.getvalue() == "a-very-long-label text\nshort       text\n"
