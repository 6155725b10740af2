"""What looks like a credential is found by its shape, told by kind and place, and never shown; other text is not."""

import base64
import gzip
import hashlib
import json
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import SecretHit, scan

pytestmark = pytest.mark.unit

HEX = hashlib.sha256(b"seed").hexdigest()
"""Stands for whatever is random in a credential; the pieces are put together here, so that this file holds none."""
MIXED = base64.b64encode(hashlib.sha512(b"seed").digest()).decode().replace("+", "a").replace("/", "b").rstrip("=")
JWT = ".".join(("eyJ" + MIXED[:20], "eyJ" + MIXED[20:50], MIXED[:43]))

ARMOURS = (("RSA ", ""), ("", ""), ("OPENSSH ", ""), ("PGP ", " BLOCK"))


def basic(user: str) -> str:
    """As a header has it."""
    return base64.b64encode(user.encode()).decode()


SECRETS = [
    ("aws-access-key", "AKIA" + "ABCDEFGHIJKLMNOP"),
    ("aws-access-key", "ASIA" + "Z234567ABCDEFGHI"),
    ("secret", "aws_secret_access_key = " + MIXED[:40]),
    ("secret", 'AWS_SECRET_ACCESS_KEY="' + MIXED[:40] + '"'),
    ("secret", '"SecretAccessKey": "' + MIXED[:40] + '"'),
    ("secret", "client_secret: " + HEX[:40]),
    *(("private-key", f"-----BEGIN {kind}PRIVATE KEY{block}-----\n" + MIXED[:64]) for kind, block in ARMOURS),
    ("private-key", "-----BEGIN RSA " + "PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\n\r\n" + MIXED[:64]),
    ("github-token", "ghp_" + MIXED[:36]),
    ("github-token", "ghs_" + MIXED[:36]),
    ("github-token", "github_pat_" + MIXED[:22] + "_" + MIXED[:59]),
    ("gitlab-token", "glpat-" + MIXED[:20]),
    ("npm-token", "npm_" + MIXED[:36]),
    ("pypi-token", "pypi-" + "AgEIcHlwaS5vcmc" + MIXED[:70]),
    ("huggingface-token", "hf_" + MIXED[:34]),
    ("model-api-key", "sk-" + MIXED[:48]),
    ("model-api-key", "sk-" + HEX[:32]),
    ("model-api-key", "sk-None-" + MIXED[:48]),
    ("model-api-key", "sk-proj-" + MIXED[:40] + "-" + MIXED[40:60]),
    ("model-api-key", "sk-ant-" + "api03-" + MIXED[:60]),
    ("model-api-key", "sk-or-v1-" + HEX),
    ("model-api-key", "gsk_" + MIXED[:52]),
    ("model-api-key", "xai-" + MIXED[:80]),
    ("model-api-key", "nvapi-" + MIXED[:64]),
    ("model-api-key", "r8_" + MIXED[:37]),
    ("payment-key", "sk_live_" + MIXED[:24]),
    ("mail-api-key", "SG." + MIXED[:22] + "." + MIXED[:43]),
    ("google-token", "ya29." + MIXED[:60]),
    ("slack-token", "xoxb-" + "123456789012-" + MIXED[:24]),
    ("slack-webhook", "https://hooks.slack.com" + "/services/T12345678/B12345678/" + MIXED[:24]),
    ("telegram-token", "123456789" + ":AA" + MIXED[:33]),
    ("google-api-key", "AIza" + MIXED[:35]),
    ("authorization-header", "Authorization: Bearer " + HEX[:40]),
    ("authorization-header", "authorization=Basic " + basic("user:" + "pa55w0rd1")),
    ("authorization-header", '["authorization","Bearer ' + MIXED[:40] + '"]'),
    ("authorization-header", "(b'authorization', b'Bearer " + MIXED[:40] + "')"),
    ("bearer-token", "Bearer " + MIXED[:40]),
    ("token", "MIDFLIGHT_TOKEN=" + HEX),
    ("token", "AWS_SESSION_TOKEN=" + MIXED * 3),
    ("api-key", "OPENAI_API_KEY=" + MIXED[:40]),
    ("api-key", "WANDB_API_KEY=" + HEX[:40]),
    ("api-key", '"api_key": "' + MIXED[:40] + '"'),
    ("api-key", '{"x-api-key": "' + MIXED[:40] + '"}'),
    ("api-key", '["api-key", "' + HEX[:32] + '"]'),
    ("api-key", "AccountName=a;AccountKey=" + MIXED + "=="),
    ("password", '"password": "' + MIXED[:24] + '"'),
    ("password", "PGPASSWORD=" + MIXED[:20]),
    ("signature-in-url", "https://x.example/c?sv=2022-11-02&sig=" + MIXED[:43] + "%3D"),
    ("password-in-url", "postgres://worker:" + "hunter22" + "@db.internal/runs"),
    ("password-in-url", "redis://:" + "s3cr3t" + "@cache:6379"),
    ("password-in-url", "https://" + MIXED[:40] + "@code.example/x"),
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
    "AKIAIOSFODNN7" + "EXAMPLE",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + MIXED[:43],
    "A PEM file begins with -----BEGIN " + "PRIVATE KEY----- and ends alike",
    "the secret: " + HEX[:40],
    "client_secret: da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "Authorization: Bearer YOUR_TOKEN_1234567890, Bearer abcdefghijklmnopqrstuvwxyz012345",
    "authorization: Basic " + basic("user:password"),
    "sk-proj-your-key-goes-here-1234567, sk-proj-management-board-2024-overview",
    "hf_" + "x" * 34 + ", sk-" + "abc123def456ghi789jkl012mno345pqr678",
    "redis://default:changeme@redis, postgres://user:password1@localhost/db, http://foo:8080@x",
    "password = getpass(), password=variable1, password: base64.b64decode(text), pwd=/srv/someone/work",
    'next_page_token: "' + MIXED[:40] + '", cache_key: "' + HEX + '"',
    "/" + MIXED + "/sk-" + MIXED[:48],
    "data:image/png;base64," + base64.b64encode(HEX.encode() * 20).decode(),
]


KEY = "sk-proj-" + MIXED[:60]


@pytest.mark.parametrize(
    "before",
    [*"/+_-=", "KEY_", "/srv/keys/of-many/", "%3D", "%22", r"\\u0022", r"\\u003d", r"\x3d", "\x1b[32m", r"a\\n"],
)
def test_a_known_key_is_found_behind_whatever_joins_it(before: str) -> None:
    """A path, a name, an escape of JSON, of a URL or of a terminal: none of them is the middle of a payload."""
    [hit] = scan(f"x = 1 {before}{KEY}".encode())
    assert (hit.kind, hit.offset) == ("model-api-key", 6 + len(before))


def packed(data: bytes) -> str:
    """As a record holds it."""
    return base64.b64encode(zlib.compress(data)).decode()


CODED = [
    ("base64", base64.b64encode(KEY.encode()).decode().encode()),
    ("base64", json.dumps({"payload": {"$bytes": base64.b64encode(b"first: " + KEY.encode()).decode()}}).encode()),
    ("base64", b"data: " + base64.urlsafe_b64encode(b"??>>" + f"api_key={MIXED[:40]}".encode())),
    ("hexadecimal", b"x='" + KEY.encode().hex().encode() + b"'"),
    ("UTF-16", b"\1\2" + KEY.encode("utf-16-le")),
    ("UTF-16", KEY.encode("utf-16-be")),
    ("compressed bytes", zlib.compress(KEY.encode())),
    ("compressed bytes", gzip.compress(KEY.encode(), mtime=0)),
    ("base64, compressed", f'{{"$bytes":"{packed(KEY.encode())}"}}'.encode()),
    ("base64 in base64", b'"' + base64.b64encode(b'"' + base64.b64encode(KEY.encode()) + b'"') + b'"'),
]


@pytest.mark.parametrize(("coding", "data"), CODED, ids=[f"{at}-{coding}" for at, (coding, _) in enumerate(CODED)])
def test_a_key_written_in_another_way_is_found(coding: str, data: bytes) -> None:
    """The hit says how it is written, and where what holds it begins."""
    [hit] = scan(data)
    assert hit.kind.endswith(f" in {coding}")
    assert hit.kind.startswith(("model-api-key", "api-key"))
    assert 0 <= hit.offset < 30


def test_unpacking_is_bounded() -> None:
    """Of what would unpack to more than a few times its length, only the beginning is looked into."""
    bomb = json.dumps([packed(bytes(1_000_000) + KEY.encode())] * 200).encode()
    began = time.process_time()
    assert scan(bomb) == []
    assert time.process_time() - began < 5


@pytest.mark.parametrize("text", INNOCENT)
def test_prose_placeholders_and_digests_are_no_credentials(text: str) -> None:
    """Text that talks about credentials, or only resembles one, is left alone."""
    assert scan(text.encode()) == []


def payload(count: int) -> bytes:
    """The same random-looking bytes every time."""
    return b"".join(hashlib.sha512(b"%d" % n).digest() for n in range(count))


def test_megabytes_of_payload_hold_no_credential() -> None:
    """Base64 in both alphabets, hexadecimal, and token ids: not one false alarm in some megabytes of each."""
    raw = payload(20_000)
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


ADVERSARIAL = [
    *(
        "sk-",
        "ghp_",
        "eyJ",
        ".eyJ" + "a" * 10,
        "a",
        "_",
        "://",
        "://a:",
        "-----BEGIN ",
        "PRIVATE KEY-----\\n",
        "\\",
        " ",
    ),
    *(
        "key=",
        "token=a1",
        "password=",
        "secret:",
        "authorization: basic ",
        "bearer ",
        '"',
        "\x00a",
        "AKIA",
        "sig=",
        "a1B-",
    ),
    *('"' + "q1W2" * 6, "Proc-Type: \n"),
]


def test_no_text_is_scanned_in_more_than_bounded_work() -> None:
    """Whatever is repeated, a megabyte takes tenths of a second; by the square of its length it would take minutes."""
    for text in ADVERSARIAL:
        data = (text * (200_000 // len(text))).encode()
        began = time.process_time()
        scan(data)
        assert time.process_time() - began < 2, text


@given(st.binary(max_size=300))
def test_any_bytes_can_be_scanned(data: bytes) -> None:
    """No input makes it fail, and offsets stay inside."""
    assert all(0 <= hit.offset < len(data) for hit in scan(data))
