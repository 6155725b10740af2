"""A small reversible tokenizer: one id per byte, one per known word with its space, and a few marks.

    0 .. 255        the bytes of UTF-8
    256 .. 263      marks: they shape a conversation and are never made from the text of a message
    264 ..          words, each with the space before it: a fixed list of English words, then words made of syllables

A run of ids is kept as a Python string whose characters have the ids as code points. That is compact, hashes, slices
and compares fast, and lets regular expressions look for marks.

Two promises. decode(encode(text)) == text, for every text. And what the backend itself generates is canonical: cutting
it anywhere between two words and encoding the text of both parts gives the same ids again, since each word brings its
space.
"""

import re
from collections.abc import Iterable
from itertools import islice, product
from typing import NewType

from .refusals import RequestRefused

Ids = NewType("Ids", str)
"""Token ids, one character each."""

MARKS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|tools|>", "<|call|>", "<|refusal|>")
FIRST_MARK = 256
END, SYSTEM, USER, ASSISTANT, TOOL, TOOLS, CALL, REFUSAL = (chr(FIRST_MARK + n) for n in range(len(MARKS)))

SHOWN_CALL, SHOWN_REFUSAL = "\udc00", "\udc01"
"""Stand for two marks in decoded text. Lone surrogates: no decoded text has them otherwise."""

_COMMON = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what
all were we when your can said there use an each which she do how their if will up other about out many then them these
so some her would make like him into time has look two more write go see number no way could people my than first water
been call who its now find long down day did get come made may part over new sound take only little work know place year
live me back give most very after thing our just name good sentence man think say great where help through much before
line right too mean old any same tell boy follow came want show also around form three small set put end does another
well large must big even such because turn here why ask went men read need land different home us move try kind hand
picture again change off play
spell air away animal house point page letter mother answer found study still learn should add
count counter weather tool value calculate result city task user assistant step check plan next final
"""
_VOCABULARY = 2048
_SYLLABLES = [a + b for a, b in product("bdfgklmnprstvz", "aeiou")]


def _words() -> list[str]:
    common = dict.fromkeys(_COMMON.split())
    made = (a + b for a, b in product(_SYLLABLES, _SYLLABLES) if a + b not in common)
    return [f" {word}" for word in islice((*common, *made), _VOCABULARY)]


WORDS = _words()
FIRST_WORD = FIRST_MARK + len(MARKS)
VOCABULARY_SIZE = FIRST_WORD + len(WORDS)

FIRST_WORD_ID = chr(FIRST_WORD)
_ID_OF = {word: chr(FIRST_WORD + n) for n, word in enumerate(WORDS)}
_MARK_OF = {mark: chr(FIRST_MARK + n) for n, mark in enumerate(MARKS)}
_TEXT_OF = {token: text for text, token in (_ID_OF | _MARK_OF).items()}
_WORD = re.compile(r" [a-z]+")
_MARK_TEXT = re.compile("|".join(re.escape(mark) for mark in MARKS))
_MARK_ID = re.compile(f"[{END}-{REFUSAL}]")
_ABOVE_BYTES = re.compile(r"[\u0100-\uffff]")


def encode(text: str, *, marks: bool = False) -> Ids:
    """The ids of a text. With `marks`, text such as <|user|> becomes the mark; in a message it stays text."""
    if not marks:
        return _encode_plain(text)
    parts, end = [], 0
    for match in _MARK_TEXT.finditer(text):
        parts += [_encode_plain(text[end : match.start()]), _MARK_OF[match[0]]]
        end = match.end()
    return Ids("".join([*parts, _encode_plain(text[end:])]))


def _encode_plain(text: str) -> Ids:
    return Ids(_WORD.sub(_word_id, text.encode().decode("latin-1")))


def _word_id(match: re.Match[str]) -> str:
    return _ID_OF.get(match[0], match[0])


def to_bytes(ids: str) -> bytes:
    """The bytes that ids stand for; marks as their names."""
    plain = _ABOVE_BYTES.sub(lambda match: _TEXT_OF[match[0]], ids)
    return plain.encode("latin-1")


def decode(ids: str) -> str:
    """The text of ids; bytes that are no UTF-8 become the replacement character."""
    return to_bytes(ids).decode("utf-8", "replace")


def decode_shown(ids: str) -> str:
    """The text of generated ids for a client: two marks as single characters, the others dropped."""
    if len(ids) == 1 and ids >= FIRST_WORD_ID:
        return _TEXT_OF[ids]
    parts, end = [], 0
    for match in _MARK_ID.finditer(ids):
        parts += [decode(ids[end : match.start()]), {CALL: SHOWN_CALL, REFUSAL: SHOWN_REFUSAL}.get(match[0], "")]
        end = match.end()
    return "".join([*parts, decode(ids[end:])])


def name_marks(shown: str) -> str:
    """Shown text as plain text, the two marks spelled out."""
    return shown.replace(SHOWN_CALL, MARKS[-2]).replace(SHOWN_REFUSAL, MARKS[-1])


def is_cut_inside_character(ids: str) -> bool:
    """Whether these ids end in the middle of a UTF-8 character."""
    tail = ids[-4:]
    for back in range(1, len(tail) + 1):
        byte = ord(tail[-back])
        if byte > 0xFF or byte < 0x80:
            return False
        if byte >= 0xC0:
            return back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False


def from_numbers(numbers: Iterable[int]) -> Ids:
    """Ids from what a client sent; an unknown id is refused."""
    numbers = list(numbers)
    if any(not 0 <= number < VOCABULARY_SIZE for number in numbers):
        raise RequestRefused(f"a token id is not in 0..{VOCABULARY_SIZE - 1}", param="prompt")
    return Ids("".join(map(chr, numbers)))


def to_numbers(ids: str) -> list[int]:
    """Ids as the list that a client gets."""
    return list(map(ord, ids))
