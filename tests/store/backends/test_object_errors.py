"""What each answer of an object store means: one table, and the exceptions of the libraries below."""

import errno

import aiohttp
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from store.backends.object_errors import CredentialsExpired, NoCredentials, RangePastEnd, translate, translated
from store.errors import (
    AccessDenied,
    AlreadyExists,
    BackendError,
    IOFailed,
    NoSpace,
    NotFound,
    RootMissing,
    StoreError,
    TransientError,
    UnsupportedStore,
)

pytestmark = pytest.mark.unit

URL = "s3://bucket/run"
REFUSED, UNCLEAR = False, None

ANSWERS = [
    ("PreconditionFailed", 412, AlreadyExists),
    ("412", 412, AlreadyExists),
    ("ConditionalRequestConflict", 409, REFUSED),
    ("OperationAborted", 409, REFUSED),
    ("SlowDown", 503, REFUSED),
    ("ServiceUnavailable", 503, REFUSED),
    ("TooManyRequests", 429, REFUSED),
    ("BadDigest", 400, REFUSED),
    ("InternalError", 500, UNCLEAR),
    ("BadGateway", 502, UNCLEAR),
    ("GatewayTimeout", 504, UNCLEAR),
    ("RequestTimeout", 400, UNCLEAR),
    ("AccessDenied", 403, AccessDenied),
    ("SomethingNew", 403, AccessDenied),
    ("InvalidAccessKeyId", 403, AccessDenied),
    ("SignatureDoesNotMatch", 403, AccessDenied),
    ("RequestTimeTooSkewed", 403, AccessDenied),
    ("ExpiredToken", 400, CredentialsExpired),
    ("ExpiredToken", 403, CredentialsExpired),
    ("NoSuchKey", 404, NotFound),
    ("404", 404, NotFound),
    ("NoSuchBucket", 404, RootMissing),
    ("InvalidRange", 416, RangePastEnd),
    ("QuotaExceeded", 403, NoSpace),
    ("InsufficientStorage", 507, NoSpace),
    ("NotImplemented", 501, UnsupportedStore),
    ("EntityTooLarge", 400, IOFailed),
]


@pytest.mark.parametrize(("code", "status", "expected"), ANSWERS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_each_answer_has_one_meaning(
    code: str, status: int, expected: type[BackendError] | bool | None, wrapped: bool
) -> None:
    """An answer to a create, bare or wrapped by s3fs in an exception of Python's, becomes one of our errors."""
    answer = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error: Exception = ClientError(answer, "PutObject")
    if wrapped:
        outer = OSError(errno.EINVAL, "m")
        outer.__cause__ = error
        error = outer
    _check(translated(error, "create", "k", URL), expected)


def test_a_failed_condition_means_existing_to_a_create_only() -> None:
    """412 in answer to anything but a create says nothing about an object of ours."""
    answer = {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"HTTPStatusCode": 412}}
    assert isinstance(translated(ClientError(answer, "x"), "put", "k", URL), IOFailed)


def _endpoint_error(cause: Exception) -> EndpointConnectionError:
    return EndpointConnectionError(endpoint_url="http://host", error=cause)


BREAKS = [
    (ConnectTimeoutError(endpoint_url="u"), REFUSED),
    (_endpoint_error(aiohttp.ClientConnectorError(None, ConnectionRefusedError())), REFUSED),  # type: ignore[arg-type]
    (_endpoint_error(aiohttp.ClientOSError(errno.ECONNRESET, "reset")), UNCLEAR),
    (_endpoint_error(aiohttp.ClientConnectionError("Connection lost")), UNCLEAR),
    (ConnectionClosedError(endpoint_url="u"), UNCLEAR),
    (ReadTimeoutError(endpoint_url="u"), UNCLEAR),
    (aiohttp.ClientPayloadError(), UNCLEAR),
    (aiohttp.ServerDisconnectedError(), UNCLEAR),
    (TimeoutError(), UNCLEAR),
    (ConnectionResetError(), UNCLEAR),
    (ConnectionRefusedError(), REFUSED),
    (OSError(errno.EBUSY, "busy"), UNCLEAR),
    (NoCredentialsError(), NoCredentials),
    (PermissionError(), AccessDenied),
    (FileNotFoundError(), NotFound),
    (FileExistsError(), AlreadyExists),
    (NotImplementedError(), UnsupportedStore),
    (OSError(errno.EINVAL, "?"), IOFailed),
]


@pytest.mark.parametrize(("error", "expected"), BREAKS, ids=lambda value: type(value).__name__)
def test_only_what_was_never_sent_is_certain(error: Exception, expected: type[BackendError] | bool | None) -> None:
    """A connection that never came up has changed nothing; one that broke off may have."""
    _check(translated(error, "create", "k", URL), expected)


def _check(ours: StoreError, expected: type[BackendError] | bool | None) -> None:
    if isinstance(expected, type):
        assert type(ours) is expected
    else:
        assert isinstance(ours, TransientError)
        assert ours.applied is expected


def test_our_own_errors_pass_and_others_keep_their_cause() -> None:
    """The seam translates once, and never hides where an error came from."""
    with pytest.raises(NotFound) as raised, translate("get", "k", URL):
        raise NotFound("get", "k")
    assert raised.value.__cause__ is None
    cause = PermissionError("no")
    with pytest.raises(AccessDenied) as denied, translate("get", "k", URL):
        raise cause
    assert denied.value.__cause__ is cause


def test_a_mistake_of_ours_is_not_called_an_error_of_the_store() -> None:
    """A TypeError is a bug and must look like one."""
    with pytest.raises(TypeError), translate("get", "k", URL):
        raise TypeError("bug")
