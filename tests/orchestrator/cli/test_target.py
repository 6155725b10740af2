"""Options of a store are parsed, and credentials on a command line are refused."""

from typing import Any

import pytest

from orchestrator.cli.target import make_target, parse_option
from store import InvalidInput

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("anon=true", ("anon", True)),
        ("profile=ci", ("profile", "ci")),
        ('config_kwargs={"max_pool_connections": 3}', ("config_kwargs", {"max_pool_connections": 3})),
        ("note=a=b", ("note", "a=b")),
        ("empty=", ("empty", "")),
    ],
)
def test_a_value_is_json_where_it_parses_as_that(text: str, expected: tuple[str, Any]) -> None:
    """Numbers, switches and nested options can be given, and plain words need no quotes."""
    assert parse_option(text) == expected


@pytest.mark.parametrize("text", ["novalue", "=x", ""])
def test_what_is_not_key_and_value_is_refused(text: str) -> None:
    """And the message says what it should look like."""
    with pytest.raises(InvalidInput, match="key=value"):
        parse_option(text)


@pytest.mark.parametrize("text", ["key=x", "SECRET=x", "token=x", 'client_kwargs={"aws_secret_access_key": "x"}'])
def test_a_credential_on_the_command_line_is_refused_and_not_repeated(text: str) -> None:
    """Every process of the host sees a command line; the message names the option and not its value."""
    with pytest.raises(InvalidInput, match="environment") as caught:
        parse_option(text.replace("x", "hunter2"))
    assert "hunter2" not in str(caught.value)


def test_an_endpoint_is_an_option_like_any() -> None:
    """It reaches the file system under the name that s3fs has for it."""
    target = make_target("s3://b/p", "http://localhost:9000", ["anon=true"], 3.0)
    assert target.options == {"anon": True, "endpoint_url": "http://localhost:9000"}
    assert target.retry_for_s == 3.0
