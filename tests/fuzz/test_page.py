"""docs/fuzzing.md says of every parser where it stands and who feeds it, and that is so."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import control_page, telemetry_page
from tests.tidy import faults

from . import page as fuzzing
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


@pytest.mark.parametrize("module", [fuzzing, faults, control_page, telemetry_page], ids=lambda module: module.__name__)
@pytest.mark.parametrize(("given", "code"), [(["--help"], 0), (["--nosuch"], 2), (["more"], 2)])
def test_whoever_asks_how_a_page_is_written_does_not_write_it(
    module: Any, given: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does whoever gives it what it does not take."""
    monkeypatch.setattr(module, "PAGE", Path("/nosuch/page.md"))
    with pytest.raises(SystemExit) as ended:
        module.main(given)
    assert ended.value.code == code
