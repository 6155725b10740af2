"""Commit and restore of a checkpoint, against a bare loop over the same records: `python -m bench.store --help`.

The last line with --json is one JSON object: {"commit": {"seconds", "mb_per_s", "ratio_to_limit"}, "restore": {the
same}, "bytes", "objects", "requests", "peak_rss_mb"}. MB are 10^6 bytes of uncompressed records; `bytes` and `objects`
are what one checkpoint leaves in the store, `requests` what writing and reading it asked of the backend.
"""

import gc
import json
import os
import secrets
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio

from store import DEFAULT_LIMITS, Backend, Limits, Record, StoreError, open_backend, open_store

from . import command_line, limit, memory, ours, shape, speeds
from .command_line import count, counts
from .timing import MB, Versus


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for."""

    records: int
    size: int
    url: str
    participants: int
    threads: int
    repeat: int
    memory: tuple[int, ...]

    @property
    def limits(self) -> Limits:
        """The store's own, with as many frames in flight as there are threads."""
        return replace(DEFAULT_LIMITS, frames_in_flight=self.threads)

    @property
    def is_local(self) -> bool:
        """Whether `url` is a folder."""
        return "://" not in self.url


@dataclass(slots=True)
class Result:
    """Everything that was measured."""

    raw_bytes: int = 0
    paper: speeds.Speeds | None = None
    commit: Versus = field(default_factory=Versus)
    restore: Versus = field(default_factory=Versus)
    bytes: int = 0
    objects: int = 0
    commit_requests: Counter[str] = field(default_factory=Counter)
    restore_requests: Counter[str] = field(default_factory=Counter)
    peaks: list[memory.Peak] = field(default_factory=list)

    def summary(self, records: int) -> dict[str, object]:
        """As the last line shows it."""
        peak = next((peak.restore_mb for peak in self.peaks if peak.records == records), self.peaks[-1].restore_mb)
        return {
            "commit": self.commit.summary(self.raw_bytes),
            "restore": self.restore.summary(self.raw_bytes),
            "bytes": self.bytes,
            "objects": self.objects,
            "requests": self.commit_requests.total() + self.restore_requests.total(),
            "peak_rss_mb": peak,
        }


Bare = limit.BareFiles | limit.BareObjects


@asynccontextmanager
async def _bare(options: Options, url: str) -> AsyncIterator[Bare]:
    if options.is_local:
        yield limit.BareFiles(Path(url), options.limits.frame_bytes)
        return
    opened = await open_backend(url, limits=options.limits, writable=True)
    try:
        yield limit.BareObjects(opened.backend, options.limits.frame_bytes)
    finally:
        await opened.backend.aclose()


async def _once(
    options: Options, number: int, bare: list[limit.BareObject], own: list[list[Record]], result: Result
) -> None:
    url = f"{options.url}/{number}"
    async with _bare(options, f"{url}-bare") as loop, open_store(url, "write", limits=options.limits) as opened:
        store, requests = opened.counted()
        with result.commit.limit.run():
            await loop.commit(bare)
        with result.commit.ours.run():
            await ours.commit(store, own)
        result.commit_requests = Counter(requests)
        with result.restore.limit.run():
            documents = await loop.restore(bare)
        found = len(documents)
        del documents
        with result.restore.ours.run():
            records = await ours.restore(store)
        result.restore_requests = requests - result.commit_requests
        if not options.records == found == len(records):
            raise ValueError(f"{found} and {len(records)} records came back of {options.records}")
        await _look(store.backend, result)


async def _look(backend: Backend, result: Result) -> None:
    found = await backend.list("")
    result.objects, result.bytes = len(found), sum(info.size for info in found)


def _split(records: list[Record], participants: int) -> list[list[Record]]:
    each = -(-len(records) // participants)
    return [records[start : start + each] for start in range(0, len(records), each)]


async def _measure(options: Options) -> Result:
    result = Result()
    records = list(shape.records(0, options.records, options.size))
    bare, own = limit.shares(records, options.threads), _split(records, options.participants)
    result.paper = speeds.measure(bare[0].documents, options.limits.frame_bytes)
    gc.freeze()  # A process that restores would not hold the records that this one has made; nor do its collections.
    for number in range(options.repeat):
        await _once(options, number, bare, own, result)
        result.raw_bytes = sum(share.raw_bytes for share in bare)
        await _remove(options, f"{options.url}/{number}", f"{options.url}/{number}-bare")
    return result


async def _remove(options: Options, *urls: str) -> None:
    """Delete what a run left in an object store; a temporary folder goes as a whole."""
    if options.is_local:
        return
    for url in urls:
        opened = await open_backend(url, limits=options.limits, writable=False)
        try:
            await opened.backend.delete([info.key for info in await opened.backend.list("")])
        finally:
            await opened.backend.aclose()


def run(options: Options) -> Result:
    """Measure times, then memory in child processes."""
    result = anyio.run(_measure, options)
    for number in options.memory:
        url = f"{options.url}/memory-{number}"
        result.peaks.append(memory.measure(url, number, options.size, options.participants))
        anyio.run(_remove, options, url)
    return result


def print_tables(options: Options, result: Result) -> None:
    """For people."""
    cores = os.cpu_count() or 1
    print(
        f"{options.records} records of {result.raw_bytes / options.records:.0f} bytes, "
        f"{result.raw_bytes / MB:.1f} MB in all, {options.participants} participants; "
        f"{options.threads} threads, {cores} cores, {options.repeat} runs, interleaved with those of the bare loop"
    )
    _print_paper(result, cores)
    print(
        f"\n{'seconds':<18}{'min':>7} {'median':>7} {'max':>7} {'cpu':>7} {'MB/s':>8}   ratio to limit (min median max)"
    )
    for name, versus in (("commit", result.commit), ("restore", result.restore)):
        print(f"{name + ', bare loop':<18}{versus.limit}{result.raw_bytes / MB / versus.limit.median:9.1f}")
        ratios = f"{min(versus.ratios):.2f} {versus.ratio:.2f} {max(versus.ratios):.2f}"
        print(f"{name:<18}{versus.ours}{result.raw_bytes / MB / versus.ours.median:9.1f}   {ratios}")
    print(f"\n{result.objects} objects of {result.bytes / MB:.1f} MB together")
    print(f"requests of the commit:  {_requests(result.commit_requests)}")
    print(f"requests of the restore: {_requests(result.restore_requests)}")
    print(f"\n{'peak MB':>10} {'start':>8} {'commit':>8} {'restore':>8}")
    for peak in result.peaks:
        print(f"{peak.records:>10} {peak.start_mb:>8} {peak.commit_mb:>8} {peak.restore_mb:>8}")


def _print_paper(result: Result, cores: int) -> None:
    paper = result.paper
    if paper is None:
        return
    print(
        f"one core, MB/s: serialise {paper.serialise:.0f}, compress {paper.compress:.0f}, sha256 {paper.sha256:.0f}, "
        f"decompress {paper.decompress:.0f}, parse {paper.parse:.0f}"
    )
    print(
        f"limit on paper: commit {paper.commit_s(result.raw_bytes, cores):.2f} s (and the disk), "
        f"restore {paper.restore_s(result.raw_bytes, cores):.2f} s"
    )


def _requests(requests: Counter[str]) -> str:
    return f"{requests.total()} ({', '.join(f'{count} {verb}' for verb, count in sorted(requests.items()))})"


def _parser() -> command_line.Command:
    parser = command_line.Command("bench.store", __doc__)
    parser.add_argument("--records", type=count, default=16_000, help="of a checkpoint")
    parser.add_argument("--bytes", type=count, default=4_200, help="of a record, on average")
    parser.add_argument("--url", help="folder or s3:// URL below which to work; default: a temporary folder right here")
    parser.add_argument("--participants", type=count, default=1, help="that share the records")
    parser.add_argument("--threads", type=count, default=DEFAULT_LIMITS.frames_in_flight, help="of the bare loop")
    parser.add_argument("--repeat", type=count, default=5, help="pairs of runs")
    parser.add_list(
        "--memory", counts, None, "numbers of records at which to measure peak memory, default: that of --records"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        root = f"{parsed.url.rstrip('/')}/bench-{secrets.token_hex(4)}" if parsed.url else folder
        options = Options(
            records=parsed.records,
            size=parsed.bytes,
            url=root,
            participants=parsed.participants,
            threads=parsed.threads,
            repeat=parsed.repeat,
            memory=tuple(parsed.memory or (parsed.records,)),
        )
        try:
            result = run(options)
        except (StoreError, OSError) as error:
            parser.error(f"no store below {root}: {error}")
    print_tables(options, result)
    if parsed.json:
        print(json.dumps(result.summary(options.records)))


if __name__ == "__main__":
    main()
