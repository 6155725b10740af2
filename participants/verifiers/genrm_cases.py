"""Cases of genrm_compare for whoever tries it without a model: cohorts of four, and a judge that is a function."""

import random

import orjson

from ..cases import Case, Conformance
from ..data import Reply, Request

SIZE = 4
COHORTS = 14
_WORDS = ("amber", "brook", "cedar", "delta", "ember", "frost", "grove", "heath")


class StandInJudge:
    """Likes longer answers better; the same of the same, whoever asks."""

    role = "model.main"

    async def call(self, request: Request) -> Reply:
        """Answer one comparison whose answers stand in the metadata."""
        shown = request.body["metadata"]
        lengths = [len(shown["response_1"]), len(shown["response_2"])]
        ranking = 2 if lengths[0] > lengths[1] else 5
        scores = [1 + length % 5 for length in lengths]
        said = orjson.dumps({"score_1": scores[0], "score_2": scores[1], "ranking": ranking}).decode()
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return Reply(200, {"object": "response", "status": "completed", "output": [message], "usage": usage})


def conformance() -> Conformance:
    """Seeded, and different in length, so that rewards differ within a cohort."""
    chance = random.Random(0)
    cases = []
    for number in range(COHORTS):
        group = f"cohort-{number}"
        asked = {"input": [{"role": "user", "content": f"Say something about {chance.choice(_WORDS)}, {number}."}]}
        for index in range(SIZE):
            said = " ".join(chance.choice(_WORDS) for _ in range(chance.randint(1, 12)))
            row = {"responses_create_params": asked, "_ng_group_id": group, "_ng_rollout_index": index}
            cases.append(Case(row=row, said=said, cohort=group))
    return Conformance(cases=cases, options={"num_rollouts_per_prompt": SIZE}, peers={"model.main": StandInJudge()})
