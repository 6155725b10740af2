"""Capabilities that are probed when there is somebody to ask: a dead endpoint does not fail a start.

Until a probe has reached somebody, the capabilities are NOTHING. It is repeated at the first call after
`note_success`, so at the first success of any other call, and never twice at once.
"""

import anyio

from .capabilities import NOTHING, Capabilities
from .probe import DEADLINE_S, Asks, Probed, probe


class LazyCapabilities:
    """What one endpoint can do, as far as it is known now."""

    def __init__(
        self,
        endpoint: Asks,
        model: str = "",
        *,
        kind: str = "",
        tool_format: str = "",
        deadline_s: float = DEADLINE_S,
        known: Capabilities | None = None,
    ) -> None:
        """As `probe`; with `known` it is taken at its word and never probed."""
        self._endpoint, self._model = endpoint, model
        self._kind, self._tool_format, self._deadline_s = kind, tool_format, deadline_s
        self._probed = Probed(known or NOTHING, reached=known is not None, model=model)
        self._due = known is None
        self._lock = anyio.Lock()

    @property
    def probed(self) -> Probed:
        """The last probe; before the first one nothing is reached."""
        return self._probed

    @property
    def now(self) -> Capabilities:
        """What is known, without waiting; NOTHING before a probe has reached somebody."""
        return self._probed.capabilities

    async def ensure(self, patience_s: float | None = None) -> Capabilities:
        """What the endpoint can do; probes if that is due. Never raises.

        For a probe of somebody else's no longer than `patience_s` is waited; then what is known counts.
        """
        if self._due:
            with anyio.move_on_after(patience_s if self._lock.locked() else None):
                async with self._lock:
                    if self._due:
                        await self._probe()
        return self.now

    async def refresh(self) -> Probed:
        """Probe now, whatever is known. One that reaches nobody changes nothing that is known."""
        async with self._lock:
            await self._probe()
            return self._probed

    def note_success(self) -> None:
        """The endpoint has answered: if no probe has reached it yet, the next `ensure` probes."""
        self._due |= not self._probed.reached

    async def _probe(self) -> None:
        found = await probe(
            self._endpoint,
            self._model,
            kind=self._kind,
            tool_format=self._tool_format,
            deadline_s=self._deadline_s,
        )
        if found.reached or not self._probed.reached:
            self._probed = found
        self._due = False
