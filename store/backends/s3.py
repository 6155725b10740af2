"""Objects in S3 and what speaks its protocol, through the client that s3fs sets up.

Rules.

1. One object is one PUT, whatever its size: there is never an unfinished multipart upload to sweep. A create carries
   `If-None-Match: *`.
2. One call here is one try: the retries of s3fs and botocore are off, because only our retry layer knows the deadline
   and what may have taken effect. (aiohttp alone sends a request once more where the connection breaks before a reply,
   and has no option against it. That can turn a create that succeeded into AlreadyExists: as after a lost reply.)
3. Nothing is answered from a cache, and a missing bucket is never reported as a missing object.
4. Expired credentials: the client is made anew once, which reads them again from wherever they come from (environment,
   files, instance role), and the request is repeated. Credentials that were given as storage_options cannot be
   refreshed this way; then, as where the new ones are refused too, the answer is AccessDenied.
5. A body is read only after its announced length is found acceptable, and a shorter one is a TransientError. ETags are
   never looked at: they need not be digests of anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, cast

import anyio
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from s3fs import S3FileSystem

from ..errors import BackendError, InvalidInput, IOFailed, NotFound, ObjectTooLarge, RootMissing
from ..limits import DEFAULT_LIMITS, Limits
from .base import ObjectInfo
from .keys import check_key, check_prefix, is_key
from .object import Listing, ObjectBackend
from .object_errors import CredentialsExpired, RangePastEnd, of_code, translate, translated

KEYS_PER_DELETE = 1000
"""Most keys that one DeleteObjects request takes."""
_CLOSE_S = 5.0
_WARM_UP = {"warm_up_loader_caches": True} if "warm_up_loader_caches" in signature(AioConfig).parameters else {}
"""Let the client read its API descriptions in a thread: that takes 80 ms, and would stop the event loop."""


class S3Backend(ObjectBackend):
    """Keeps objects in an S3 bucket, below a prefix; see the module for the rules."""

    _fs: S3FileSystem

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        limits: Limits = DEFAULT_LIMITS,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`storage_options` are those of s3fs; what they leave out comes from FSSPEC_S3_* and AWS_*."""
        self._options = dict(storage_options or {})
        super().__init__(_filesystem(limits, self._options), f"{bucket}/{prefix}", scheme="s3")
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._clients: list[Any] = []
        self._connecting = anyio.Lock()

    async def create(self, key: str, data: bytes) -> None:
        """Write a new object unless the key is taken."""
        await self._request("create", key, "put_object", Body=data, IfNoneMatch="*")

    async def put(self, key: str, data: bytes) -> None:
        """Write an object in place of any other with this key."""
        await self._request("put", key, "put_object", Body=data)

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read a whole object; one request."""
        return await self._read("get", key, max_bytes)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read `length` bytes from offset `start`, or as many as there are."""
        if length <= 0:
            await self.stat(key)
            return b""
        try:
            return await self._read("get_range", key, length, Range=f"bytes={start}-{start + length - 1}")
        except RangePastEnd:
            return b""

    async def stat(self, key: str) -> ObjectInfo:
        """Look at one object without reading it."""
        try:
            found = await self._request("stat", key, "head_object")
        except NotFound:
            await self._check_bucket()  # a reply to HEAD has no body that would tell the two apart
            raise
        return ObjectInfo(key, int(found["ContentLength"]), found["LastModified"].timestamp())

    async def list(self, prefix: str) -> Listing:
        """All objects below a prefix, sorted; may be stale."""
        check_prefix(prefix)
        found: dict[str, ObjectInfo] = {}
        token: dict[str, str] = {}
        while True:
            page = await self._request("list", None, "list_objects_v2", Prefix=self._prefix + prefix, **token)
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if is_key(key):
                    found[key] = ObjectInfo(key, int(entry["Size"]), entry["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return [found[key] for key in sorted(found)]
            token = self._next_page(prefix, token, page)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; goes through all keys before it raises the first error."""
        names = list(dict.fromkeys(keys))
        for key in names:
            check_key(key, temporary=True)
        if len(names) == 1:
            await self._request("delete", names[0], "delete_object")
            return
        failures: list[Exception] = []
        for start in range(0, len(names), KEYS_PER_DELETE):
            failures += await self._delete_batch(names[start : start + KEYS_PER_DELETE])
        if failures:
            raise failures[0]

    async def aclose(self) -> None:
        """Close all connections; also those of clients that were replaced."""
        with anyio.CancelScope(deadline=anyio.current_time() + _CLOSE_S, shield=True):
            while self._clients:
                await self._clients.pop().close()

    # One request

    async def _request(self, operation: str, key: str | None, method: str, **parameters: Any) -> Mapping[str, Any]:
        """One try, but for expired credentials; without a key it is about the bucket."""
        if key is not None:
            check_key(key, temporary=operation == "delete")
            parameters["Key"] = self._prefix + key
        with translate(operation, key or "", self.url):
            client = await self._client()
            try:
                return await self._send(method, parameters)
            except Exception as error:
                if not isinstance(translated(error, operation, key or "", self.url), CredentialsExpired):
                    raise
            await self._client(instead_of=client)
            return await self._send(method, parameters)

    async def _send(self, method: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", await self._fs._call_s3(method, Bucket=self._bucket, **parameters))

    async def _client(self, *, instead_of: Any = None) -> Any:
        """The client in use; a new one, made by whoever comes first, where it is still the one to be replaced."""
        async with self._connecting:
            if not self._clients or self._clients[-1] is instead_of:
                with _refusing_options(self._options):
                    self._clients.append(await self._fs.set_session(refresh=bool(self._clients)))
            return self._clients[-1]

    async def _read(self, operation: str, key: str, max_bytes: int, **parameters: Any) -> bytes:
        reply = await self._request(operation, key, "get_object", **parameters)
        body, size = reply["Body"], int(reply["ContentLength"])
        try:
            if size > max_bytes:
                raise ObjectTooLarge(operation, key, f"{size} bytes where at most {max_bytes} are allowed")
            with translate(operation, key, self.url):
                return cast("bytes", await body.read())  # raises where it is shorter than announced
        finally:
            body.close()

    async def _check_bucket(self) -> None:
        try:
            with translate("stat", "", self.url):
                await self._client()
                await self._fs._call_s3("head_bucket", Bucket=self._bucket)
        except NotFound as error:
            raise RootMissing("stat", self.url, "there is no such bucket") from error
        except BackendError:
            return  # whatever this is, the store has said that it has no such object

    def _next_page(self, prefix: str, token: Mapping[str, str], page: Mapping[str, Any]) -> dict[str, str]:
        following = page.get("NextContinuationToken")
        if not following or following == token.get("ContinuationToken"):
            raise IOFailed("list", prefix, "the store cut its listing short and does not say how it goes on")
        return {"ContinuationToken": following}

    async def _delete_batch(self, keys: Sequence[str]) -> Sequence[Exception]:
        wanted = {"Objects": [{"Key": self._prefix + key} for key in keys], "Quiet": True}
        reply = await self._request("delete", None, "delete_objects", Delete=wanted)
        refused = [error for error in reply.get("Errors", ()) if error.get("Code") != "NoSuchKey"]
        return [self._refusal(error) for error in refused]

    def _refusal(self, error: Mapping[str, Any]) -> Exception:
        key = str(error.get("Key", "")).removeprefix(self._prefix)
        return of_code(str(error.get("Code", "")), 0, str(error.get("Message", "")), "delete", key, self.url)


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse what s3fs would only stumble over. Raises InvalidInput."""
    known = {*signature(S3FileSystem.__init__).parameters, *signature(AioSession.__init__).parameters}
    for name, value in options.items():
        if name not in known:
            raise InvalidInput(
                f"s3fs has no option {name!r:.100}", hint="Its documentation lists those of S3FileSystem"
            )
        if name.endswith("_kwargs") and not isinstance(value, Mapping | None):
            hint = f"""On a command line: --option '{name}={{"name": "value"}}'"""
            raise InvalidInput(f"the option {name} is not a JSON object", hint=hint)


@contextmanager
def _refusing_options(options: Mapping[str, Any]) -> Iterator[None]:
    """Take an error of setting up for one of the options, where there are any: else it is a bug, and looks like one."""
    try:
        yield
    except (TypeError, ValueError, AttributeError) as error:
        if not options:
            raise
        names = ", ".join(sorted(options))
        raise InvalidInput(f"s3fs refuses a value among the options {names}: {error}") from error


def _filesystem(limits: Limits, options: Mapping[str, Any]) -> S3FileSystem:
    _check_options(options)
    config = {
        "connect_timeout": limits.connect_timeout_s,
        "read_timeout": limits.read_timeout_s,
        "max_pool_connections": 4 * limits.requests_in_flight,
        # Our own digests say which object is damaged, after one more try; the client's checksum error would not.
        "response_checksum_validation": "when_required",
        **_WARM_UP,
        **(options.get("config_kwargs") or {}),
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
    ours = {
        "asynchronous": True,
        "skip_instance_cache": True,
        "use_listings_cache": False,
        "config_kwargs": config,
    }
    with _refusing_options(options):
        filesystem = S3FileSystem(**{**options, **ours})
    filesystem.retries = 1
    return filesystem
