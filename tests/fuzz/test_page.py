"""docs/fuzzing.md says of every parser where it stands and who feeds it, and that is so."""

import pytest

from .page import PAGE, renewed
from .parsers import PARSERS
from .seeds import ROOT

pytestmark = pytest.mark.unit


def test_the_page_has_every_parser() -> None:
    """`python -m tests.fuzz.page` brings it up to date."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page)


def test_what_the_page_names_is_there() -> None:
    """Each module exists, and a test that is said to feed a parser generates what it feeds."""
    for parser in PARSERS.values():
        assert (ROOT / parser.place).exists(), parser.name
        if parser.tested:
            assert "from hypothesis import" in (ROOT / parser.tested).read_text(encoding="utf-8"), parser.name
