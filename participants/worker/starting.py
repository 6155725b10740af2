"""Starting the real worker without needing torch to be asked for it."""

from pathlib import Path

from ..inference.engines import Engine
from .refusals import ExtraMissing


def start_engine(seed: int, folder: Path | None = None, version: str = "", *, kept_tokens: int | None = None) -> Engine:
    """An engine with random weights of a seed, or with those of a folder, ready in about a second.

    `version` names the weights, "0" if empty; `kept_tokens` is how much is kept of calls that have ended, for prompts
    that begin alike. Raises ExtraMissing or WeightsRefused.
    """
    try:
        from .engine import DEFAULT_VERSION, KEPT_TOKENS, LlamaEngine
        from .weights import load, make
    except ModuleNotFoundError as error:
        raise ExtraMissing(error.name or "torch") from error
    weights = make(seed) if folder is None else load(folder)
    kept = KEPT_TOKENS if kept_tokens is None else kept_tokens
    return LlamaEngine(weights, version or DEFAULT_VERSION, kept_tokens=kept)
