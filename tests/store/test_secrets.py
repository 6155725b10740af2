"""What looks like a credential is found by its shape, told by kind and place, and never shown; other text is not."""

import base64
import hashlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import SecretHit, scan

pytestmark = pytest.mark.unit

HEX = hashlib.sha256(b"seed").hexdigest()
"""Stands for whatever is random in a credential; the pieces are put together here, so that this file holds none."""
MIXED = base64.b64encode(hashlib.sha512(b"seed").digest()).decode().replace("+", "a").replace("/", "b").rstrip("=")
JWT = ".".join(("eyJ" + MIXED[:20], "eyJ" + MIXED[20:50], MIXED[:43]))

SECRETS = [
    ("aws-access-key", "AKIA" + "ABCDEFGHIJKLMNOP"),
    ("aws-access-key", "ASIA" + "Z234567ABCDEFGHI"),
    ("aws-secret-key", "aws_secret_access_key = " + MIXED[:40]),
    ("aws-secret-key", 'AWS_SECRET_ACCESS_KEY="' + MIXED[:40] + '"'),
    ("aws-secret-key", '"SecretAccessKey": "' + MIXED[:40] + '"'),
    ("private-key", "-----BEGIN " + "RSA PRIVATE KEY-----"),
    ("private-key", "-----BEGIN " + "PRIVATE KEY-----"),
    ("private-key", "-----BEGIN " + "OPENSSH PRIVATE KEY-----"),
    ("private-key", "-----BEGIN " + "PGP PRIVATE KEY BLOCK-----"),
    ("github-token", "ghp_" + MIXED[:36]),
    ("github-token", "ghs_" + MIXED[:36]),
    ("github-token", "github_pat_" + MIXED[:22] + "_" + MIXED[:59]),
    ("huggingface-token", "hf_" + MIXED[:34]),
    ("model-api-key", "sk-" + MIXED[:48]),
    ("model-api-key", "sk-proj-" + MIXED[:40] + "-" + MIXED[40:60]),
    ("model-api-key", "sk-ant-" + "api03-" + MIXED[:60]),
    ("slack-token", "xoxb-" + "123456789012-" + MIXED[:24]),
    ("slack-webhook", "https://hooks.slack.com" + "/services/T12345678/B12345678/" + MIXED[:24]),
    ("google-api-key", "AIza" + MIXED[:35]),
    ("authorization-header", "Authorization: Bearer " + HEX[:40]),
    ("authorization-header", "authorization=Basic " + MIXED[:24]),
    ("password-in-url", "postgres://worker:" + "hunter22" + "@db.internal/runs"),
    ("password-in-url", "redis://:" + "s3cr3t" + "@cache:6379"),
    ("json-web-token", JWT),
]


@pytest.mark.parametrize(("kind", "text"), SECRETS)
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("export X=", "\n"), ("see (", ") for it"), ("line\n", "\nline"), ("a, ", ", b")]
)
def test_a_credential_is_found_wherever_it_stands(kind: str, text: str, before: str, after: str) -> None:
    """Each shape is found at the start, in the middle and at the end of a text, once, and where it is."""
    found = scan(f"{before}{text}{after}".encode())
    assert [hit.kind for hit in found] == [kind]
    assert len(before) <= found[0].offset < len(before) + len(text)


@pytest.mark.parametrize(("kind", "text"), SECRETS)
def test_a_credential_in_a_json_string_is_found(kind: str, text: str) -> None:
    """Text of a model stands escaped in its record, and perhaps in a JSON string inside that one."""
    once = json.dumps({"content": f"first line\n{text}\nlast line"})
    twice = json.dumps({"arguments": once})
    assert [hit.kind for hit in scan(once.encode())] == [kind]
    assert [hit.kind for hit in scan(twice.encode())] == [kind]


def test_a_hit_does_not_hold_the_secret() -> None:
    """What a scan returns can be printed anywhere."""
    for _, text in SECRETS:
        for hit in scan(text.encode()):
            assert MIXED[:10] not in repr(hit)
            assert set(SecretHit.__slots__) == {"kind", "offset"}


INNOCENT = [
    "The secret key to a good soup is patience, and the authorization to season it early.",
    "Set AWS_SECRET_ACCESS_KEY=<your secret> and Authorization: Bearer <token> before you start.",
    "Authorization: Bearer YOUR_API_KEY_GOES_HERE",
    "postgres://user:password@localhost/db, https://user:***@host, http://user:$PASSWORD@host",
    "ask-the-expert-about-this-very-long-hyphenated-compound-word, task-12345678901234567890",
    "sk-learn-compatible-estimators, sk-estimator-doc-link-with-a-long-name",
    "https://example.org:8443/a@b and mailto:someone@example.org, ratio 3:4@5",
    "-----BEGIN CERTIFICATE-----, -----BEGIN PUBLIC KEY-----",
    "AKIA is how such ids begin, as in AKIAEXAMPLE, and AIza for the others; ghp_ and hf_ too",
    "commit 3f2a9c, sha256 " + HEX + ", uuid 123e4567-e89b-42d3-a456-426614174000",
    '"secret": "' + "a" * 40 + '"',
    "1.eyJ0 is not a token, nor is eyJhbGciOiJub25lIn0.e30",
    "data:image/png;base64," + base64.b64encode(HEX.encode() * 20).decode(),
]


@pytest.mark.parametrize("text", INNOCENT)
def test_prose_placeholders_and_digests_are_no_credentials(text: str) -> None:
    """Text that talks about credentials, or only resembles one, is left alone."""
    assert scan(text.encode()) == []


def payload(count: int) -> bytes:
    """The same random-looking bytes every time."""
    return b"".join(hashlib.sha512(b"%d" % n).digest() for n in range(count))


def test_megabytes_of_payload_hold_no_credential() -> None:
    """Base64 in both alphabets, hexadecimal, and token ids: not one false alarm in some megabytes of each."""
    raw = payload(30_000)
    token_ids = json.dumps([int.from_bytes(raw[i : i + 2]) for i in range(0, len(raw), 2)])
    for text in (base64.b64encode(raw), base64.urlsafe_b64encode(raw), raw.hex().encode(), token_ids.encode(), raw):
        assert scan(text) == []


def test_scanning_is_fast_enough_for_every_record() -> None:
    """Some ten megabytes a second would already hide behind decompression; the real rate is printed."""
    token_ids = json.dumps([n * 7919 % 150_000 for n in range(500_000)]).encode()
    prose = b"the model said that nobody should ever ask for the secret keys of another account; " * 40_000
    for name, data in (("token ids", token_ids), ("prose", prose), ("base64", base64.b64encode(payload(40_000)))):
        began = time.process_time()
        assert scan(data) == []
        rate = len(data) / 1e6 / (time.process_time() - began)
        print(f"scan of {name}: {rate:.0f} MB/s")  # noqa: T201
        assert rate > 10


@given(st.binary(max_size=300))
def test_any_bytes_can_be_scanned(data: bytes) -> None:
    """No input makes it fail, and offsets stay inside."""
    assert all(0 <= hit.offset < len(data) for hit in scan(data))
