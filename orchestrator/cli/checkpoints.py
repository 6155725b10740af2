"""`midflight checkpoints`: list, show, verify, diff, prune and copy, on a store at any URL."""

from functools import partial
from typing import Annotated

import anyio.to_thread
import typer

from store import (
    DEFAULT_LIMITS,
    AccessDenied,
    AggregateManifest,
    Chain,
    NoSpace,
    ObjectInfo,
    Ref,
    Retention,
    Store,
    StoreError,
    copy_checkpoint,
    diff_checkpoints,
    open_checkpoint,
    prune,
    survey,
    verify_store,
)
from store.audit import DAMAGE
from store.layout import CHECKPOINTS_PREFIX, check_rollout_id
from store.leftovers import Owned, find_leftovers
from store.opened import load_aggregate
from store.reader import Which
from store.tasks import map_bounded

from . import compose
from .choosing import NoRollout, find, parse_drop, parse_which
from .documents import Compared, Copied, Document, Listing, Pruned, Row, Shown, ShownRollout
from .progress import watching
from .running import finish
from .target import Target, make_target

app = typer.Typer(
    help="Look at the checkpoints of a store, and keep house.", no_args_is_help=True, rich_markup_mode=None
)

Url = Annotated[
    str, typer.Argument(metavar="URL", help="A path, or a URL such as s3://bucket/run.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs.")]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint-url", metavar="URL", help="Where an S3-compatible service listens.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of the file system; may be repeated."),
]
RetryFor = Annotated[
    float, typer.Option("--retry-for", metavar="SECONDS", min=0.0, help="How long one request is retried.")
]
Chosen = Annotated[str, typer.Argument(metavar="[ID|head]", help="A checkpoint id, or head.")]
_RETRY_FOR_S = DEFAULT_LIMITS.retry_for_s
_NO_ROOM = "a prune first writes its plan, a few hundred bytes, and not even those fit"
_MAKE_ROOM = "Free some kilobytes outside of the store and run the same command again; nothing is lost"


@app.command("list")
def list_command(
    url: Url,
    as_json: Json = False,
    endpoint_url: Endpoint = None,
    option: Options = None,
    retry_for: RetryFor = _RETRY_FOR_S,
) -> None:
    """List the checkpoints, oldest first, with the head, deletions, and what was left unpublished."""

    async def job() -> Document:
        async with make_target(url, endpoint_url, option or (), retry_for).open() as store:
            return await list_checkpoints(store)

    finish("list", job, as_json=as_json)


async def list_checkpoints(store: Store) -> Listing:
    """Everything that `list` shows."""
    listed = await _listed(store)
    chain = await store.chain()
    owned = Owned(state=chain.state, existing=chain.known.refs, deleted=chain.known.deleted, keys={}, blobs=None)
    leftovers = [f"{found.object}: {found.message}" for found in find_leftovers(listed, owned)]
    rows = await map_bounded(partial(_row, store, chain), chain.known.refs.values(), store.limits.requests_in_flight)
    return Listing(
        store=store.url,
        run_id=store.run_id,
        epoch=chain.state.epoch,
        entries=len(chain.entries),
        head=chain.state.head.checkpoint if chain.state.head else None,
        checkpoints=tuple(rows),
        deletions=compose.deletions(chain),
        warnings=(*store.warnings, *leftovers),
    )


async def _listed(store: Store) -> list[ObjectInfo]:
    try:
        return await store.backend.list(CHECKPOINTS_PREFIX)
    except AccessDenied:
        return []  # Listing only finds leftovers; what exists is on the chain.


async def _row(store: Store, chain: Chain, ref: Ref) -> Row:
    manifest: AggregateManifest | StoreError
    try:
        manifest = await load_aggregate(store, ref)
    except DAMAGE as error:
        manifest = error
    return compose.row(ref, chain, compose.made_by(chain)[ref.checkpoint], manifest)


@app.command("show")
def show_command(
    url: Url,
    which: Chosen = "head",
    rollout: Annotated[
        str | None, typer.Option("--rollout", metavar="ID", help="Print the records of one rollout instead.")
    ] = None,
    as_json: Json = False,
    endpoint_url: Endpoint = None,
    option: Options = None,
    retry_for: RetryFor = _RETRY_FOR_S,
) -> None:
    """Show what a restore of one checkpoint would do, and what the checkpoint holds."""

    async def job() -> Document:
        async with make_target(url, endpoint_url, option or (), retry_for).open() as store:
            chosen = parse_which(which)
            return await (show_checkpoint(store, chosen) if rollout is None else show_rollout(store, chosen, rollout))

    finish("show", job, as_json=as_json)


async def show_checkpoint(store: Store, which: Which) -> Shown:
    """Everything that `show` shows."""
    ref = await find(store, which)
    chain = await store.chain()
    checkpoint = await open_checkpoint(store, ref)
    return compose.shown(store.url, checkpoint, chain, compose.made_by(chain)[ref.checkpoint])


async def show_rollout(store: Store, which: Which, rollout_id: str) -> ShownRollout:
    """What becomes of one rollout, and its records; reads no frame without it. Raises NoCheckpoint."""
    check_rollout_id(rollout_id)
    checkpoint = await open_checkpoint(store, await find(store, which))
    records = await checkpoint.rollout(rollout_id)
    found = await anyio.to_thread.run_sync(compose.shown_rollout, store.url, checkpoint.manifest, rollout_id, records)
    if found is None:
        raise NoRollout(store.url, checkpoint.ref.checkpoint, rollout_id)
    return found


@app.command("verify")
def verify_command(
    url: Url,
    which: Annotated[str | None, typer.Argument(metavar="[ID|head]", help="Look at this one only.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also parse every record and read every blob.")] = False,
    as_json: Json = False,
    endpoint_url: Endpoint = None,
    option: Options = None,
    retry_for: RetryFor = _RETRY_FOR_S,
) -> None:
    """Check everything, say what is damaged, looks like a credential or is left over, and change nothing."""

    async def job() -> Document:
        async with make_target(url, endpoint_url, option or (), retry_for).open() as store:
            chosen = None if which is None else (await find(store, parse_which(which))).checkpoint
            with watching("verifying") as progress:
                report = await verify_store(store, chosen, deep=deep, progress=progress)
            return compose.verified(store.url, report)

    finish("verify", job, as_json=as_json)


@app.command("diff")
def diff_command(
    url: Url,
    a: Annotated[str, typer.Argument(metavar="A", help="A checkpoint id, or head.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    as_json: Json = False,
    endpoint_url: Endpoint = None,
    option: Options = None,
    retry_for: RetryFor = _RETRY_FOR_S,
) -> None:
    """Say what differs from checkpoint A to checkpoint B."""

    async def job() -> Document:
        async with make_target(url, endpoint_url, option or (), retry_for).open() as store:
            with watching("comparing", "records") as progress:
                refs = [await find(store, parse_which(name)) for name in (a, b)]
                found = await diff_checkpoints(store, refs[0].checkpoint, refs[1].checkpoint, progress)
            return Compared(store=store.url, difference=found)

    finish("diff", job, as_json=as_json)


@app.command("prune")
def prune_command(
    url: Url,
    keep_last: Annotated[int, typer.Option("--keep-last", min=0, help="Keep the newest so many.")] = 2,
    keep_every: Annotated[int, typer.Option("--keep-every", min=0, help="Keep each n-th; 0 for none.")] = 0,
    keep_tagged: Annotated[bool, typer.Option(help="Keep what has a tag.")] = True,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="ID", help="Delete this one; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and change nothing.")] = False,
    as_json: Json = False,
    endpoint_url: Endpoint = None,
    option: Options = None,
    retry_for: RetryFor = _RETRY_FOR_S,
) -> None:
    """Delete checkpoints that no rule keeps, and old leftovers. The head is always kept, and so are imports."""

    async def job() -> Document:
        target = make_target(url, endpoint_url, option or (), retry_for)
        drops = frozenset(map(parse_drop, drop or ()))
        policy = Retention(keep_last=keep_last, keep_every=keep_every, keep_tagged=keep_tagged, drop=drops)
        return await prune_store(target, policy, dry_run=dry_run)

    finish("prune", job, as_json=as_json)


async def prune_store(target: Target, policy: Retention, *, dry_run: bool) -> Pruned:
    """What `prune` does. A store is never made: it is opened for reading first."""
    async with target.open() as store:
        compose.check_drops(store.url, await store.chain(), policy.drop)
        if dry_run:
            return compose.pruned(store.url, await survey(store, policy), None)
    async with target.open("write", only_deletes=True) as store:
        try:
            with watching("deleting", "objects") as progress:
                report = await prune(store, policy, progress)
        except NoSpace as error:
            raise NoSpace(error.operation, error.key, _NO_ROOM, hint=_MAKE_ROOM) from error
        return compose.pruned(store.url, report.survey, report)


@app.command("copy")
def copy_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The store to copy from.")],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="The store to copy to; made if need be.")],
    checkpoint: Annotated[str, typer.Option("--checkpoint", metavar="ID", help="Which one.")] = "head",
    as_json: Json = False,
    endpoint_url: Endpoint = None,
    option: Options = None,
    destination_endpoint_url: Annotated[
        str | None, typer.Option("--destination-endpoint-url", metavar="URL", help="Another one for the destination.")
    ] = None,
    destination_option: Annotated[
        list[str] | None, typer.Option("--destination-option", metavar="KEY=VALUE", help="Others for the destination.")
    ] = None,
    retry_for: RetryFor = _RETRY_FOR_S,
) -> None:
    """Copy one checkpoint into another store; the same command continues a copy that was interrupted."""

    async def job() -> Document:
        from_store = make_target(source, endpoint_url, option or (), retry_for)
        to_store = make_target(
            destination, destination_endpoint_url or endpoint_url, destination_option or option or (), retry_for
        )
        return await copy_between(from_store, to_store, parse_which(checkpoint))

    finish("copy", job, as_json=as_json)


async def copy_between(source: Target, destination: Target, which: Which) -> Copied:
    """What `copy` does. The destination is not made before the source is found to hold the checkpoint."""
    async with source.open() as from_store:
        which = (await find(from_store, which)).checkpoint
        async with destination.open("write") as to_store:
            with watching("copying") as progress:
                ref = await copy_checkpoint(from_store, to_store, which, progress)
            return Copied(
                source=from_store.url,
                destination=to_store.url,
                checkpoint=ref.checkpoint,
                run_id=ref.run_id,
                digest=ref.digest,
            )
