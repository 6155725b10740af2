"""What the errors of object storage mean to the store: the one seam between fsspec, botocore, aiohttp and ours.

The question that matters for a write is whether it may have taken effect. A store that answers 409, 429 or 503 has said
no; a connection that never came up has sent nothing; everything else that is not an answer (500, a timeout, a reset, a
reply that cannot be read) leaves it open.
"""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import (
    AccessDenied,
    AlreadyExists,
    InvalidName,
    IOFailed,
    NoSpace,
    NotFound,
    RootMissing,
    StoreError,
    TransientError,
    UnsupportedStore,
)


class CredentialsExpired(AccessDenied):
    """The credentials were right but are too old; others may have been put in their place."""


class NoCredentials(AccessDenied):
    """There are none to be sent, so nothing was."""

    hint = (
        "Put them where the S3 client looks, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, "
        "and for a service of your own its AWS_ENDPOINT_URL; then run the same command again"
    )


class RangePastEnd(IOFailed):
    """The range starts at or behind the end of the object."""


_CONDITION_FAILED = {"PreconditionFailed", "412"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_REFUSED_FOR_NOW = {
    "ConditionalRequestConflict", "OperationAborted", "SlowDown", "ServiceUnavailable", "Throttling",
    "ThrottlingException", "TooManyRequests", "RequestLimitExceeded",
}  # fmt: skip
_DAMAGED_ON_THE_WAY = {
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "XAmzContentChecksumMismatch",
    "IncompleteBody",
}
_DENIED = {
    "AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidAccessKeyId", "InvalidToken", "InvalidSecurity",
    "SignatureDoesNotMatch", "RequestTimeTooSkewed", "NotSignedUp", "MethodNotAllowed",
}  # fmt: skip
_FULL = {"QuotaExceeded", "XMinioStorageFull", "XMinioStorageQuotaExceeded", "InsufficientStorage"}

_NEVER_SENT = {
    "ConnectTimeoutError",
    "ProxyConnectionError",
    "ClientConnectorError",
    "gaierror",
    "ConnectionRefusedError",
}
"""botocore's EndpointConnectionError is not among them: it also covers a connection reset after the request."""
_NO_CREDENTIALS = {
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError",
    "NoAuthTokenError", "SSOTokenLoadError", "UnauthorizedSSOTokenError", "ProfileNotFound",
}  # fmt: skip
_BROKEN_OFF = {
    "HTTPClientError", "ReadTimeoutError", "ConnectionClosedError", "ResponseStreamingError", "ResponseParserError",
    "IncompleteReadError", "IncompleteRead", "ClientPayloadError", "ClientConnectionError", "EndpointConnectionError",
    "FlexibleChecksumError",
}  # fmt: skip
"""Names of exceptions, matched over the whole class hierarchy, so that no cloud library is imported to name them."""


@contextmanager
def translate(operation: str, key: str, url: str) -> Iterator[None]:
    """Turn whatever a cloud library raises into one of our errors, with its cause."""
    try:
        yield
    except (StoreError, TypeError, AttributeError, NameError, AssertionError):
        raise  # ours already, or a bug, which must look like one
    except Exception as error:
        raise translated(error, operation, key, url) from error


def translated(error: Exception, operation: str, key: str, url: str) -> StoreError:
    """Our error for a foreign one."""
    response = _response(error)
    if response is not None:
        return _of_response(response, operation, key, url)
    return _of_exception(error, operation, key, url)


def of_code(code: str, status: int, message: str, operation: str, key: str, url: str) -> StoreError:
    """Our error for an error code of S3 and the HTTP status it came with."""
    detail = f"{code}: {message}" if message else code
    if code in _CONDITION_FAILED and operation == "create":
        return AlreadyExists(operation, key)
    if code in _EXPIRED:
        return CredentialsExpired(operation, key, detail)
    if code in _REFUSED_FOR_NOW or code in _DAMAGED_ON_THE_WAY or status in {409, 429, 503}:
        return TransientError(operation, key, detail, applied=False)
    if code == "NoSuchBucket":
        return RootMissing(operation, url, "there is no such bucket")
    if code in {"InvalidRange", "416"}:
        return RangePastEnd(operation, key, detail)
    if code in _FULL or status == 507:
        return NoSpace(operation, key, detail)
    if code == "KeyTooLongError":
        return InvalidName("key", key, "short enough for this store")
    if code in _DENIED or status in {401, 403}:
        return AccessDenied(operation, key, detail)
    if code == "NoSuchKey" or status == 404:
        return NotFound(operation, key)
    if operation == "create" and (code == "NotImplemented" or status == 501):
        return UnsupportedStore(url, "it has no conditional create")
    if status >= 500 or code in {"RequestTimeout", "InternalError"}:
        return TransientError(operation, key, detail, applied=None)
    return IOFailed(operation, key, detail)


def _response(error: BaseException) -> Mapping[str, Any] | None:
    """The reply that a botocore ClientError carries, also where s3fs has wrapped it."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, Mapping) and "Error" in response:
            return response
        seen = seen.__cause__
    return None


def _of_response(response: Mapping[str, Any], operation: str, key: str, url: str) -> StoreError:
    told = response["Error"]
    code = str(told.get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or (code if code.isdigit() else 0))
    return of_code(code, status, str(told.get("Message", "")), operation, key, url)


def _layers(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it wraps: botocore keeps them in `kwargs`."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        inner = getattr(seen, "kwargs", {}).get("error")
        seen = inner if isinstance(inner, BaseException) else seen.__cause__


def _of_exception(error: Exception, operation: str, key: str, url: str) -> StoreError:
    names = {kind.__name__ for layer in _layers(error) for kind in type(layer).__mro__}
    detail = f"{type(error).__name__}: {error}"
    if names & _NO_CREDENTIALS:
        return NoCredentials(operation, key, detail)
    if names & _NEVER_SENT:
        return TransientError(operation, key, detail, applied=False)
    if "SSLError" in names:
        return IOFailed(operation, key, detail)
    if names & _BROKEN_OFF or isinstance(error, TimeoutError | ConnectionError):
        return TransientError(operation, key, detail, applied=None)
    if isinstance(error, NotImplementedError):
        return UnsupportedStore(url, f"its file system cannot {operation}: {detail}")
    if isinstance(error, OSError):
        return _of_os_error(error, operation, key, detail)
    return IOFailed(operation, key, detail)


def _of_os_error(error: OSError, operation: str, key: str, detail: str) -> StoreError:
    """For file systems other than S3, which raise the ordinary exceptions of Python."""
    if isinstance(error, FileNotFoundError):
        return NotFound(operation, key)
    if isinstance(error, FileExistsError):
        return AlreadyExists(operation, key)
    if isinstance(error, PermissionError):
        return AccessDenied(operation, key, detail)
    if error.errno in {errno.EBUSY, errno.EAGAIN}:
        return TransientError(operation, key, detail, applied=None)
    return IOFailed(operation, key, detail)
