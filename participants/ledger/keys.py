"""Capture keys: the names by which people and trainers ask for the newest life of an attempt."""

import re
from dataclasses import dataclass

from store import InvalidName, Life

from ..errors import Code, ParticipantError

_LATER = re.compile(r"(.+)-a([1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True)
class CaptureKey:
    """`<rollout_id>` for attempt 0, `<rollout_id>-a<N>` for attempt N."""

    rollout_id: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id

    @classmethod
    def of(cls, life: Life) -> "CaptureKey":
        """The key that names this life, as long as its attempt has no newer one."""
        return cls(life.rollout_id, life.attempt)

    @classmethod
    def parse(cls, text: str) -> "CaptureKey":
        """Parse the written form. Raises `invalid_request`."""
        match = _LATER.fullmatch(text)
        rollout_id, attempt = (match[1], int(match[2])) if match else (text, 0)
        try:
            Life(rollout_id, 0, attempt, 0)
        except InvalidName as error:
            raise ParticipantError(
                Code.INVALID_REQUEST, f"{text!r:.80} is no capture key, <rollout_id> or <rollout_id>-a<N>"
            ) from error
        return cls(rollout_id, attempt)
