"""A counter that keeps half of its state where no export finds it."""

from typing import Any

from participants import ResourcesSession, tool
from participants.servers.counter import CounterServer


class ForgetfulCounter(CounterServer):
    """Adds up in an attribute of its own what is odd."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self._odd: dict[str, int] = {}

    @tool
    async def increment_counter(self, session: ResourcesSession, count: int) -> dict[str, Any]:
        """Add a number to the counter."""
        assert session.life is not None
        if count % 2:
            self._odd[session.life.rollout_id] = self._odd.get(session.life.rollout_id, 0) + count
        else:
            session.state["count"] += count
        return {"success": True}

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 if the counter stands at `expected_count`."""
        assert session.life is not None
        count = session.state["count"] + self._odd.get(session.life.rollout_id, 0)
        return {"reward": float(count == row["expected_count"])}
