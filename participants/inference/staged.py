"""Where the backend meets the staging helper: a call's identity, its active buffer, and the cut that it continues."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

from store import StoreError

from ..errors import ParticipantError
from ..staging import ActiveBuffer, Entry, PromptRef, Stager, StagingRefused, TokenStore, cut_of, identity_of
from .jobs import Job
from .refusals import RequestRefused
from .sampling import MAX_GENERATED_TOKENS
from .tokens import Ids, from_numbers, to_numbers


def make_stager(folder: Path | None, context_length: int = MAX_GENERATED_TOKENS) -> Stager | None:
    """The helper with its token store in a folder, made if it is missing; None without a folder. Raises OSError."""
    return None if folder is None else Stager(TokenStore.on_disk(folder), context_length=context_length)


def prompt_ref(prompt: Ids) -> PromptRef:
    """As `PromptRef.of`, straight from the ids as the backend keeps them."""
    return PromptRef(len(prompt), hashlib.sha256(prompt.encode("utf-32-le")).hexdigest())


async def enter(stager: Stager | None, job: Job, headers: Mapping[str, str]) -> tuple[Job, ActiveBuffer | None]:
    """The job to generate, its prompt followed by the cut that it continues, and its buffer where it has an identity.

    Raises RequestRefused where the cut is not as the request says; nothing is begun then.
    """
    if stager is None:
        if job.staged is not None:
            raise RequestRefused("this backend has no token store", param="staged", code="unknown_key")
        return job, None
    identity = identity_of(headers)
    entry = await _begin(stager, job, headers)
    if identity is None and entry is None:
        return job, None
    if entry is None:
        alone, prefix = _parted(job)
        return job, stager.open(identity, prompt_ref(alone), to_numbers(prefix)) if identity else None
    job = dataclasses.replace(job, prompt=Ids(job.prompt + from_numbers(entry.ids)), begun=entry.count)
    return job, stager.open(identity, entry.prompt, entry.ids) if identity else None


def _parted(job: Job) -> tuple[Ids, Ids]:
    """The prompt alone, and what its caller says is output already: a later cut has that in it."""
    end = max(len(job.prompt) - job.begun, 0)
    return Ids(job.prompt[:end]), Ids(job.prompt[end:])


async def _begin(stager: Stager, job: Job, headers: Mapping[str, str]) -> Entry | None:
    if job.staged is None:
        return None
    try:  # Engines generate until the context is full where more is asked for: room for one token is enough.
        return await stager.begin(cut_of(job.staged, prompt_ref(job.prompt), identity_of(headers)))
    except StagingRefused as refused:
        raise RequestRefused(refused.message, status=422, param="staged", code=refused.reason) from refused
    except ParticipantError as error:
        raise RequestRefused(error.message, status=422, param="staged", code=error.code) from error
    except StoreError as error:
        raise RequestRefused(str(error), status=503, param="staged", code="store_failed") from error
