"""Scores of reasoning-gym, in a child of `bounded`: an answer can hold a scorer up for ever, and is never run as code.

Scorers of the library hand an answer to `eval`, or to sympy's `parse_expr`, which evaluates Python too. Here their
modules find others under these names: one that reads literals, and one that lets nothing but formulas through. What
these refuse is to the scorer an answer that cannot be read.

The child loads this file by its path, so it imports nothing of ours.
"""

import ast
import builtins
import keyword
import re
import unicodedata
from functools import lru_cache
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson

LITERALS = ("algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens")
FORMULAS = {
    "algebra.intermediate_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
    "algebra.simple_integration": "sympy",
    "games.countdown": "parse_expr",
    "games.puzzle24": "parse_expr",
}
"""Modules whose scorers parse an answer, and by which name: that of sympy, or of its function."""
_NAME = re.compile(r"[^\W\d]\w*")
_NOT_IN_A_FORMULA = re.compile(r"""["'`\\#;:={}\[\]@$]|\.\s*[^\W\d]|__""")


def score_by_gym(given: dict[str, Any], answer: str | None) -> dict[str, Any]:
    """The reward, and where the scorer could not read the answer also `answer_error`; or why it was `refused`.

    Raises what the scorer raises where it does so for the entry's own answer too.
    """
    try:
        dataset = dataset_of(str(given["dataset"]), orjson.dumps(given.get("config") or {}))
    except ValueError as error:
        return {"refused": str(error)}
    entry = given["entry"]
    if type(given.get("index")) is int:
        entry = dataset[given["index"]]
        if as_json(entry) != given["entry"]:
            told = f"{given['dataset']} makes another entry {given['index']} than the row has, as another version might"
            return {"refused": f"{told}: make the rows again"}
    try:
        return {"reward": float(dataset.score_answer(answer=answer, entry=entry))}
    except Exception as error:
        dataset.score_answer(answer=entry.get("answer"), entry=entry)  # It raises too where the entry is the reason.
        return {"reward": 0.0, "answer_error": f"{type(error).__name__}: {error}"[:200]}


def compares_text(given: dict[str, Any]) -> bool:
    """Whether a data set is scored by the library's comparison of texts, which ends and runs nothing."""
    try:
        made, base = import_module("reasoning_gym.factory"), import_module("reasoning_gym.dataset").ProceduralDataset
    except ModuleNotFoundError:
        return False
    known: Any = made.DATASETS.get(given["dataset"]) if isinstance(given["dataset"], str) else None
    return known is not None and known[0].score_answer is base.score_answer


def as_json(entry: Any) -> Any:
    """An entry as it comes back from a row. Raises TypeError for what JSON cannot say."""
    return orjson.loads(orjson.dumps(entry, option=orjson.OPT_NON_STR_KEYS))


@lru_cache(maxsize=64)
def dataset_of(name: str, config: bytes) -> Any:
    """A data set by its name and settings. Raises ValueError for what there is not; blocks for seconds at first."""
    library: Any = import_module("reasoning_gym")
    if name not in library.factory.DATASETS:
        raise ValueError(f"there is no such data set: {name!r:.100}")
    try:
        return library.create_dataset(name, **orjson.loads(config))
    except Exception as error:  # A data set checks its settings by itself, and imports what it needs.
        raise ValueError(f"the data set {name} does not take these settings: {error!r:.300}") from error


def disarm() -> None:
    """Import the library, and leave its scorers nothing that runs an answer."""
    import_module("reasoning_gym")
    for name in LITERALS:
        vars(import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval
    parser: Any = import_module("sympy")

    def parse_formula(text: str, *args: Any, **rest: Any) -> Any:
        check_formula(text, parser)
        return parser.parse_expr(text, *args, **rest)

    harmless = SimpleNamespace(**{**vars(parser), "parse_expr": parse_formula})
    for name, bound in FORMULAS.items():
        vars(import_module(f"reasoning_gym.{name}"))[bound] = parse_formula if bound == "parse_expr" else harmless


def check_formula(text: str, parser: ModuleType) -> None:
    """Raises ValueError where there is more in it than numbers, operators, symbols and functions of mathematics."""
    text = unicodedata.normalize("NFKC", text)
    if _NOT_IN_A_FORMULA.search(text):
        raise ValueError("this is no formula")
    for name in _NAME.findall(text):
        if not _is_mathematics(name, getattr(parser, name, None)):
            raise ValueError(f"{name!r:.50} has no place in a formula")


def _is_mathematics(name: str, meant: Any) -> bool:
    """Whether a name is a symbol, or a constant or function of sympy."""
    sympy: Any = import_module("sympy")
    if meant is None:
        return not (keyword.iskeyword(name) or hasattr(builtins, name))
    if isinstance(meant, type):
        return issubclass(meant, sympy.Function)
    return isinstance(meant, sympy.Basic) or name in ("sqrt", "cbrt", "root")
