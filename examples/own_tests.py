"""The conformance kit on a server of one's own: as tests, `pytest examples/own_tests.py`, and as a function.

python examples/own_tests.py
"""

import anyio
from own_server import TodoServer  # type: ignore[import-not-found]  # It lies beside this file.

from midflight import check_conformance, conformance_tests

test_conformance = conformance_tests(TodoServer)


async def main() -> None:
    """Try one rule, and say how it ended."""
    report = await check_conformance(TodoServer, rules=["continued-equals-uninterrupted"])
    for rule in report.rules:
        print(f"{rule.outcome}: {rule.sentence}")
    print(report.text or f"nothing is broken in {report.server}")


if __name__ == "__main__":
    anyio.run(main)
