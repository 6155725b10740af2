"""Ten thousand lives at once."""

from pathlib import Path

import pytest

from tests.support.ledgers import many_lives

pytestmark = [pytest.mark.scale, pytest.mark.anyio, pytest.mark.timeout(300)]


async def test_ten_thousand_lives_use_few_locks_and_descriptors(tmp_path: Path) -> None:
    """64 lock files at most, descriptors only for a batch, and none afterwards."""
    await many_lives(tmp_path / "ledgers", 10_000)
