"""All peers, by the names that the command line has for them."""

from collections.abc import Callable, Mapping

from .dbos_peer import Dbos, DbosPostgres
from .langgraph_peer import LangGraph
from .midflight_peer import Midflight
from .plain import FinishedRows, SqliteRows
from .protocol import Peer

PEERS: Mapping[str, Callable[[], Peer]] = {
    "midflight": Midflight,
    "dbos_sqlite": Dbos,
    "dbos_postgres": DbosPostgres,
    "langgraph_sqlite": LangGraph,
    "sqlite_rows": SqliteRows,
    "finished_rows": FinishedRows,
}
