"""What each kind of backend is known to do, with the source of each fact. A probe keeps only what it sees.

Sources, by document name:

    [M1] docs/backend.md: the deterministic backend has no random numbers; the worker draws by a hash of the seed and of
         how many ids there are, so a prompt with the prefix draws what the uncut generation drew; and both are told
         how many ids of the prompt are output already (`continued_tokens`), so that penalties count the same.
    [V1] vLLM, entrypoints/openai/completion/serving.py: `return_token_ids` gives `token_ids` in each choice of a
         stream and `prompt_token_ids` in the first; a prompt may be a list of ids; an error in mid-stream is an event
         `data: {"error": ...}` followed by `data: [DONE]`.
    [V2] vLLM, entrypoints/openai/chat_completion/protocol.py: chat chunks have `token_ids` in the choice and
         `prompt_token_ids` at the top; `continue_final_message` excludes `add_generation_prompt`. Its pull request
         29074: with `return_token_ids` a chunk is sent for tokens that a tool parser holds back, too.
    [V3] vLLM, entrypoints/serve/tokenize/protocol.py: `/tokenize` takes `prompt` or `messages` and gives `tokens`;
         `/detokenize` takes `tokens` and gives `prompt`.
    [V4] vLLM, SamplingParams: presence and frequency penalties look at generated text alone, and a seeded request
         draws from a generator of its own that starts with it. So a cut changes both.
    [V5] Measured for this project by `bench.exactness` on vLLM 0.32 on CPU in float32, greedy: every cut equal, alone
         and 8 at once (docs/servers.md). Seen there besides: streams of Responses name no ids, and lack log
         probabilities of tokens that show no text; `stop_reason` in the choices; the id of the end comes with the
         reason, in one event; several tokens may come in one event; a closed connection ends the generation in 0.05 s.
    [V6] vLLM, issue 54443 and pull request 49040: the version of the weights is asked for at `GET /weight_info`
         (development mode; 404 without it); the chunks of its OpenAI routes do not name it, as seen in 0.32.
    [S1] SGLang, pull request 30917: `return_token_ids` on completions, streamed and not, and on chat only without a
         stream; with one it is refused: "return_token_ids is not supported with streaming on /v1/chat/completions".
    [S2] SGLang, entrypoints/openai/serving_completions.py: a prompt may be a list of ids; `metadata.weight_version`
         in whole replies, not in chunks (its pull request 40347 moves it to `sglext`).
    [S3] SGLang, entrypoints/openai/serving_tokenize.py: `/tokenize` takes `prompt` alone and gives `tokens`;
         `/detokenize` gives `text`.
    [S4] SGLang, FAQ and "Deterministic inference": equal output for equal input only with
         `--enable-deterministic-inference`, as batching and the prefix cache change the order of additions.
    [S5] SGLang, pull request 4226: `continue_final_message`.
    [L1] llama.cpp, tools/server/README: `prompt` may be a list of tokens; its own `/completion` names ids
         (`return_tokens`), its OpenAI routes do not; `/tokenize` takes `content`, `/detokenize` gives `content`.
    [L2] The same page on `cache_prompt`: logits are not bit for bit the same for different batch sizes. Measured for
         this project with a quantised model: 31 of 36 equal.
    [L3] llama.cpp, pull request 23012: `continue_final_message`, with `add_generation_prompt` false.
    [L4] llama.cpp, tools/server/README, `/completion`: no `min_tokens`; penalties look at the last tokens of prompt
         and output together (`repeat_last_n`); `GET /props` has the context of a slot.
    [O1] OpenAI, API reference: chat, completions (older models) and responses; unknown fields of a request are refused.

A closed connection ends the generation in all four servers; nothing probes that.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from .capabilities import Capabilities, Feature

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
ROUTES = frozenset({COMPLETIONS, CHAT, RESPONSES})

_SURVIVES = frozenset({Feature.GREEDY, Feature.SAMPLED, Feature.STOP, Feature.LOGPROBS})
"""Wherever prompt and prefix together are the same ids: the distribution of the next token depends on them alone."""

MIDFLIGHT = Capabilities(
    kind="midflight",
    routes=ROUTES,
    token_ids_out=True,
    ids_routes=ROUTES,
    token_ids_in=True,
    logprobs=True,
    tokenize=True,
    detokenize=True,
    continue_final_message=True,
    abort_on_disconnect=True,
    tool_calls=True,
    tool_format="marks",
    bit_equal=True,
    declared=_SURVIVES | {Feature.MIN_TOKENS, Feature.TOOLS, Feature.SEED, Feature.PENALTIES},  # [M1]
    staging=True,
    end_ids=frozenset({256}),
)
"""The deterministic backend and the worker; docs/backend.md. The end mark comes in an event before the reason."""

VLLM = Capabilities(
    kind="vllm",
    routes=ROUTES,
    token_ids_out=True,  # [V1] [V2]
    ids_routes=frozenset({COMPLETIONS, CHAT}),
    token_ids_in=True,  # [V1]
    logprobs=True,
    tokenize=True,  # [V3]
    detokenize=True,
    continue_final_message=True,  # [V2]
    abort_on_disconnect=True,
    tool_calls=True,
    bit_equal=True,  # [V5], and what the probe sees; not a promise of vLLM
    says_stop_reason=True,
    declared=_SURVIVES | {Feature.MIN_TOKENS},  # not seed and penalties: [V4]
)

SGLANG = Capabilities(
    kind="sglang",
    routes=ROUTES,
    ids_routes=frozenset({COMPLETIONS}),  # [S1]
    token_ids_in=True,  # [S2]
    logprobs=True,
    tokenize=True,  # [S3]
    detokenize=True,
    continue_final_message=True,  # [S5]
    abort_on_disconnect=True,
    tool_calls=True,
    bit_equal=False,  # [S4]
    declared=_SURVIVES | {Feature.MIN_TOKENS},
)

LLAMA_CPP = Capabilities(
    kind="llama.cpp",
    routes=frozenset({COMPLETIONS, CHAT}),
    token_ids_in=True,  # [L1]
    logprobs=True,
    tokenize=True,
    detokenize=True,
    continue_final_message=True,  # [L3]
    abort_on_disconnect=True,
    tool_calls=True,
    bit_equal=False,  # [L2]
    declared=_SURVIVES,  # not min_tokens: [L4]
)

OPENAI = Capabilities(kind="openai", routes=ROUTES, logprobs=True, tool_calls=True, declared=_SURVIVES)  # [O1]
"""Any other compatible endpoint; what it can do beyond that shows in the probe."""

DECLARED: Mapping[str, Capabilities] = MappingProxyType(
    {each.kind: each for each in (MIDFLIGHT, VLLM, SGLANG, LLAMA_CPP, OPENAI)}
)

_OWNERS = MappingProxyType(
    {"midflight": "midflight", "vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "llama.cpp": "llama.cpp"}
)


def declared(kind: str, *, tool_format: str = "") -> Capabilities:
    """What a kind declares; an unknown kind is `openai`.

    `tool_format` says how calls stand in the generated text, where the kind does not fix it: a server's option (in
    vLLM `--tool-call-parser`), so only its operator knows. With one, tools may be continued.
    """
    known = DECLARED.get(kind, OPENAI)
    if not tool_format:
        return known
    return replace(known, tool_format=tool_format, declared=known.declared | {Feature.TOOLS})


def kind_of(card: Mapping[str, object]) -> str:
    """The kind, from `owned_by` of an entry of `/v1/models`. Only what the probe sees is relied upon."""
    return _OWNERS.get(str(card.get("owned_by", "")).lower(), "openai")
