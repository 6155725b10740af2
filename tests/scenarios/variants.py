"""In which variants a scenario runs: worker counts before and after a restore, and where the store is."""

from dataclasses import dataclass

import pytest

from .stage import Workers

ONE, TWO = Workers(), Workers(model=2, others=2)
MODEL_TWO, OTHERS_TWO = Workers(model=2), Workers(others=2)


@dataclass(frozen=True, slots=True)
class Variant:
    """How a stage is set up."""

    plan: tuple[Workers, ...] = (ONE,)
    """Of the first start and the later ones."""
    s3: bool = False
    script: bool = False
    """As `Stage.script`."""


_COUNTS = {
    "one": Variant((ONE,)),
    "two": Variant((TWO,)),
    "more": Variant((OTHERS_TWO, MODEL_TWO)),
    "fewer": Variant((MODEL_TWO, OTHERS_TWO), script=True),
}
"""Each server with 1 and 2 workers, the same after a restore, more than before and fewer."""
_PROCESS = [pytest.param(variant, id=name, marks=pytest.mark.process) for name, variant in _COUNTS.items()]
_S3 = pytest.param(Variant((TWO,), s3=True, script=True), id="s3", marks=pytest.mark.real)

one = pytest.mark.process
"""A scenario that runs with one worker each, on a local path."""
counts = pytest.mark.parametrize("stage", _PROCESS, indirect=True)
"""(W): with all worker counts."""
one_and_two = pytest.mark.parametrize("stage", _PROCESS[:2], indirect=True)
"""A scenario for which it matters that a server is several processes."""
two = pytest.mark.parametrize("stage", _PROCESS[1:2], indirect=True)
"""One that takes several processes."""
counts_and_s3 = pytest.mark.parametrize("stage", [*_PROCESS, _S3], indirect=True)
"""(W)(S): with all worker counts, and on S3."""
