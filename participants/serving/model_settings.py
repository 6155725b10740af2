"""The endpoint of a model server and what becomes of its generations: the settings, and the server made of them."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from ..backends import LazyCapabilities
from ..cuts import Policy, Verdict, always_continue, older_than
from ..ledger import Ledger
from ..model import ModelServer
from ..upstream import OpenAIEndpoint, Upstream
from .settings import JSONTable, Natural, Seconds, Table


class ModelSettings(Table):
    """`[model]` of a run, and of a model server: the endpoint."""

    base_url: str
    model: str
    api_key_env: Annotated[str, Field(min_length=1)] | None = None
    """Name of the environment variable with the key; the key itself is never stored."""
    dialect: Literal["responses", "chat"] = "chat"
    parameters: JSONTable = Field(default_factory=dict)
    """Added to every request, such as temperature."""
    retry_for_s: Seconds = 120.0
    """How long a call is tried again while the endpoint cannot be reached or answers 429 or 5xx."""
    first_token_timeout_s: Seconds = 900.0
    """How long a streamed call waits for its first bytes."""
    idle_timeout_s: Seconds = 300.0
    """And for each of those after them."""
    timeout_s: Seconds = 3600.0
    """Of one call as a whole."""

    cuts: bool = True
    """With checkpoints on: keep what has been generated of calls in flight, and continue it where the endpoint can."""
    backend: Literal["auto", "vllm", "sglang", "llama.cpp", "midflight", "openai"] = "auto"
    """What serves the endpoint, where it does not say so itself."""
    tool_format: Literal["", "hermes", "marks"] = ""
    """How calls of tools stand in the text that the model generates; empty if unknown."""
    resampled: bool = False
    """Accept a continuation that may differ from the uncut one, where the backend cannot promise more."""
    max_weight_lag: Natural | None = None
    """Versions of the weights that a continued beginning may be behind; no limit if left out."""
    stale_prefix: Literal["anew", "mask"] = "anew"
    """What becomes of a beginning that is further behind: generated anew, or continued and masked in the ledger."""

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("it is no http:// or https:// URL")
        return url

    @field_validator("base_url")
    @classmethod
    def _without_credentials(cls, url: str) -> str:
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ValueError("it holds credentials; name an environment variable with api_key_env")
        return url


def make_model_server(
    settings: ModelSettings, upstream: Upstream, *, name: str = "main", ledger_folder: str | None, cuts: bool
) -> ModelServer:
    """The server in front of `upstream`; with `ledger_folder` every call is captured there.

    With `cuts` generations are cut and continued, which is of use only where checkpoints are taken.
    """
    ledger = Ledger(ledger_folder) if ledger_folder else None
    known = None
    if (cuts or ledger) and isinstance(upstream, OpenAIEndpoint):  # A ledger too wants to know the ids.
        kind = "" if settings.backend == "auto" else settings.backend
        known = LazyCapabilities(upstream, settings.model, kind=kind, tool_format=settings.tool_format)
    policy: Policy = always_continue
    if settings.max_weight_lag is not None:
        policy = older_than(settings.max_weight_lag, then=Verdict(settings.stale_prefix))
    return ModelServer(
        upstream,
        name=name,
        model=settings.model,
        cuts=known,
        resampled=settings.resampled,
        policy=policy,
        ledger=ledger,
        staging=upstream if isinstance(upstream, OpenAIEndpoint) else None,
    )
