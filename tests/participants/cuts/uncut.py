"""The deterministic backend in process: streams, whole replies and the text of ids, without a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from participants.backends import Capabilities, Feature
from participants.cuts import Reading, StopWatch
from participants.cuts.joining import Joined, is_inside_character, joined, watch
from participants.cuts.plan import Anew, Continue, Reason, plan
from participants.cuts.prefix import Prefix
from participants.cuts.reading import finished, read
from participants.cuts.toolformats import CannotTell
from participants.inference.jobs import Job, make_meta
from participants.inference.sampling import Generation
from participants.inference.server import DEFAULT_MODEL, DIALECTS
from participants.inference.tokens import END, decode, from_numbers

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CAPABILITIES = Capabilities(
    kind="midflight",
    routes=frozenset({CHAT, COMPLETIONS, RESPONSES}),
    token_ids_out=True,
    ids_routes=frozenset({CHAT, COMPLETIONS, RESPONSES}),
    token_ids_in=True,
    logprobs=True,
    tokenize=True,
    detokenize=True,
    continue_final_message=True,
    tool_calls=True,
    tool_format="marks",
    bit_equal=True,
    declared=frozenset(Feature) - {Feature.OTHER},
    end_ids=frozenset({ord(END)}),
)


def text_of(ids: Sequence[int]) -> str:
    """As `/detokenize`."""
    return decode(from_numbers(ids))


@dataclass(frozen=True, slots=True)
class InProcess:
    """One backend."""

    makes: type[Generation] = Generation
    seed: int = 0
    weights: str = ""

    def _made(self, job: Job) -> Generation:
        return self.makes(self.seed, job.prompt, job.limits, logprobs=job.logprobs, weights=self.weights)

    def streamed(self, route: str, body: Mapping[str, Any]) -> list[bytes]:
        """The events of a streamed reply, one a chunk."""
        job = DIALECTS[route](orjson.dumps({**body, "stream": True}), DEFAULT_MODEL)
        generation = self._made(job)
        events = list(job.encoder.start(make_meta("0-1", job.model, self.weights)))
        while not generation.finish:
            if piece := generation.step():
                events += job.encoder.piece(piece)
        return [*events, *job.encoder.end(generation.finish, generation.generated)]

    def whole(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the reply to a client that does not stream."""
        job = DIALECTS[route](orjson.dumps({**body, "stream": False}), DEFAULT_MODEL)
        generation = self._made(job)
        job.encoder.start(make_meta("0-1", job.model, self.weights))
        while not generation.finish:
            if piece := generation.step():
                job.encoder.piece(piece)
        reply: dict[str, Any] = orjson.loads(orjson.dumps(job.encoder.body(generation.finish, generation.generated)))
        return reply

    def rest_of(self, planned: Continue, stop_watch: StopWatch) -> Reading:
        """Ask for the rest, reading along as long as needed."""
        if planned.body is None or stop_watch.stop is not None:
            return finished(planned.finish or "stop")
        taken: list[bytes] = []
        for chunk in self.streamed(planned.route, stop_watch.asked(planned.body)):
            taken.append(chunk)
            if stop_watch.feed(chunk):
                break
        return read(planned.route, taken)

    def continued(
        self, route: str, body: Mapping[str, Any], prefix: Prefix, capabilities: Capabilities = CAPABILITIES
    ) -> Joined | Anew:
        """What the proxy does with a prefix: plan, ask, join."""
        planned = plan(route, body, prefix, capabilities)
        if isinstance(planned, Anew):
            return planned
        try:
            return self._joined(route, body, prefix, capabilities, planned)
        except CannotTell as error:
            return Anew(Reason.MARKS, str(error))

    def _joined(
        self, route: str, body: Mapping[str, Any], prefix: Prefix, capabilities: Capabilities, planned: Continue
    ) -> Joined:
        raw_text = text_of(planned.raw_ids) if planned.needs_raw_text else None
        tool_format = capabilities.tool_format
        stop_watch = watch(body, prefix, route=route, raw_text=raw_text, tool_format=tool_format)
        rest = self.rest_of(planned, stop_watch)
        all_ids = (*planned.raw_ids, *(rest.prefix.ids or ()))
        whole_text = text_of(all_ids) if is_inside_character(raw_text) else None
        return joined(route, body, prefix, rest, raw_text=raw_text, whole_text=whole_text, tool_format=tool_format)


DETERMINISTIC = InProcess()
streamed, whole, continued = DETERMINISTIC.streamed, DETERMINISTIC.whole, DETERMINISTIC.continued
