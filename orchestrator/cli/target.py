"""Which store a command talks to, and how; credentials come from the environment and from nowhere else."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from store import DEFAULT_LIMITS, InvalidInput, Store, open_store

_CREDENTIALS = {
    "account_key",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "client_secret",
    "connection_string",
    "credential",
    "key",
    "password",
    "sas_token",
    "secret",
    "token",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A store, not opened yet."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the fsspec file system."""
    retry_for_s: float = DEFAULT_LIMITS.retry_for_s

    def open(
        self, mode: Literal["read", "write"] = "read", *, only_deletes: bool = False
    ) -> AbstractAsyncContextManager[Store]:
        """Open it; for writing it is made where there is none, and refused where it is full unless `only_deletes`."""
        limits = replace(DEFAULT_LIMITS, retry_for_s=self.retry_for_s)
        options = dict(self.options)
        return open_store(self.url, mode, limits=limits, storage_options=options, only_deletes=only_deletes)


def make_target(url: str, endpoint_url: str | None, options: Iterable[str], retry_for_s: float) -> Target:
    """From what was typed. Raises InvalidInput."""
    parsed = dict(parse_option(option) for option in options)
    if endpoint_url:
        parsed["endpoint_url"] = endpoint_url
    return Target(url, parsed, retry_for_s)


def parse_option(text: str) -> tuple[str, Any]:
    """Split `key=value`; the value is JSON where it parses as that, else text. Raises InvalidInput."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInput("an option is not of the form key=value", hint="For example: --option anon=true")
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError:
        parsed = value
    _refuse_credentials(key, parsed)
    return key, parsed


def _refuse_credentials(key: str, value: Any) -> None:
    """A command line is seen by every process of the host, and kept in histories."""
    if key.lower() in _CREDENTIALS:
        raise InvalidInput(f"the option {key} is a credential", hint="Put credentials into the environment")
    if isinstance(value, dict):
        for inner, item in value.items():
            _refuse_credentials(inner, item)
