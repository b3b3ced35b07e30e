"""Messages between the server's process and the engine's: all that crosses that pipe.

Plain immutable records, pickled. One `Submit` per request goes in, one `StepOutput` per engine
step comes out; the rest is start-up and failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

FinishReason = Literal["stop", "length", "abort", "error", "refused", "overloaded", "expired"]
"""Why a request ended. Never begun: ``refused`` (can never run), ``overloaded`` (too many wait), ``expired``
(waited too long)."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of sampling. Defaults are the OpenAI API's.

    Attributes:
        temperature: divisor of the logits; 0 is greedy.
        top_k: number of the likeliest tokens that are kept; 0 keeps all.
        top_p: mass of the likeliest tokens that are kept; 1.0 keeps all.
        min_p: share of the best token's probability below which a token is dropped; 0 keeps all.
        seed: key of the random numbers; the same seed gives the same tokens in every batch.
        repetition_penalty: divisor of positive logits of tokens of prompt and answer, factor of negative.
        presence_penalty, frequency_penalty: amounts subtracted from the logits of tokens already generated.
        logit_bias: (token id, bias) pairs added to the logits.
        logprobs: number of alternatives to report; None reports nothing.
        prompt_logprobs: number of alternatives to report for each token of the prompt; None reports nothing.
        min_tokens: tokens before which no end token is sampled.
        allowed_tokens: bits of the tokens that may be sampled, ``ceil(V / 32)`` little-endian words of 32;
            None allows all.
        bad_words: runs of tokens whose last is not sampled behind the others.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    allowed_tokens: bytes | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()


PoolingKind = Literal["last", "mean", "logits"]
MAX_LOGIT_TOKENS = 8
"""Tokens of one prompt whose logits are reported."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """Vector that a prompt is reduced to, of a request that generates nothing.

    Attributes:
        kind: ``last`` is the hidden state of the last token after the final norm, ``mean`` the mean of all
            tokens', ``logits`` the logits of ``token_ids`` after the last token.
        token_ids: tokens of ``logits``, 1 to :data:`MAX_LOGIT_TOKENS`.
    """

    kind: PoolingKind
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ThinkingRule:
    """Markers and budget of an answer's thinking.

    Attributes:
        openings: token sequences that are the opening marker; the first is the usual one.
        closings: token sequences that are the closing marker; the first is forced when the budget is spent.
        is_open: whether the answer begins within thinking.
        may_reopen: whether thinking may begin behind text.
        max_tokens: budget: tokens of thinking, markers not counted; None: no limit.
    """

    openings: tuple[tuple[int, ...], ...]
    closings: tuple[tuple[int, ...], ...]
    is_open: bool = False
    may_reopen: bool = False
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Submit:
    """A request, tokenized and validated: the prompt fits the context with at least one token to spare.

    A prompt that is pooled may fill the context. It is a request for one token, sampled and not reported.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0  # lower runs first
    choice: int = 0  # index among the choices of its request; later ones rank behind other requests
    use_prefix_cache: bool = True
    cache_salt: int = 0  # requests of one salt share prefixes with no others; 0: none
    pooling: Pooling | None = None
    constraint: str | None = None  # grammar of the answer, as llguidance reads it
    thinking: ThinkingRule | None = None  # bounds of thinking, behind which the grammar holds


@dataclass(frozen=True, slots=True)
class Abort:
    """The client left, or the server found a stop string. Unknown ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class ReadExperts:
    """The server wants an :class:`ExpertReport`; engines of models without experts are not asked."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Abort what runs and end the process with exit code 0."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the chosen token's, and the best alternatives."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class TokenEvent(NamedTuple):
    """A request's result of one step. A tuple, because a step makes and pickles one for each sequence.

    Attributes:
        token: token that was generated, or None when the request ended without one (abort, error).
        finish: reason why it ended, or None while it runs. An end-of-sequence or stop token is itself
            reported in ``token`` with ``finish="stop"``; the server does not show it as text.
        cached_tokens: prompt tokens found in the prefix cache (set on the first event).
        message: error and remedy, for ``finish="error"``, and for ``"refused"``: that request can never run,
            and the engine is sound.
        pooled: vector that a prompt was reduced to, float32 in this machine's order of bytes.
        prompt_logprobs: log-probabilities of the next tokens of the prompt, from its second on, when
            requested. An event may bring these alone: without a token, and without ``finish``.
        queued_s: time from arrival to admission (set on the first token's event).
    """

    request_id: str
    token: int | None
    finish: FinishReason | None = None
    cached_tokens: int = 0
    logprobs: TokenLogprobs | None = None
    message: str = ""
    pooled: bytes | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    queued_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StateLoad:
    """Slots of recurrent state, and snapshots in the prefix cache.

    Attributes:
        slots_used, slots_total: slots of sequences.
        snapshots_used, snapshots_total: slots of snapshots.
        hits_total: sequences that began from a snapshot.
        misses_total: sequences that began anew, though there were keys and values of their first tokens.
        evictions_total: snapshots that gave way to others, or went along with their blocks.
    """

    slots_used: int
    slots_total: int
    snapshots_used: int
    snapshots_total: int
    hits_total: int
    misses_total: int
    evictions_total: int


@dataclass(frozen=True, slots=True)
class Load:
    """Counts of the engine after a step."""

    waiting: int = 0
    running: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    steps: int = 0
    prompt_tokens_total: int = 0  # computed, not counting prefix hits
    cached_tokens_total: int = 0
    generated_tokens_total: int = 0
    preemptions_total: int = 0
    states: StateLoad | None = None  # of a model with a recurrent state


@dataclass(frozen=True, slots=True)
class ExpertReport:
    """Load of a mixture's experts since the engine was ready.

    Attributes:
        tokens: tokens sent to the expert of each index, in all layers together.
        hits: experts that were sent any, summed over steps and layers.
        passes: steps times layers with experts; ``hits / passes`` is the mean of experts hit.
        busiest: (layer, tokens of its busiest expert over the mean of its experts).
    """

    tokens: tuple[int, ...]
    hits: int
    passes: int
    busiest: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Results of one engine step."""

    events: tuple[TokenEvent, ...]
    load: Load


@dataclass(frozen=True, slots=True)
class Phase:
    """A start-up phase began, moved, or ended. Names: import, pull, weights, kernels, firstToken.

    Attributes:
        note: words about its result, for the log.
    """

    name: str
    seconds: float = 0.0
    is_done: bool = False
    bytes: int = 0
    total_bytes: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """A real step has given a token; requests may come.

    Attributes:
        max_context: tokens a sequence may hold, prompt and answer together.
        max_concurrent: sequences in one step.
        vocab_size: number of token ids.
        eos_token_ids: tokens that end an answer.
        ledger: memory plan, as ``/state`` shows it.
        kernels: kernel set, as ``/state`` shows it.
        device: ``cpu`` or ``cuda``; ``auto`` is resolved.
        load: counts before the first request; ``kv_blocks_total`` is known from here on.
        hidden_size: numbers of a hidden state.
        poolings: kinds of :class:`Pooling` that the device computes.
        has_experts: whether the engine answers :class:`ReadExperts`.
    """

    max_context: int
    max_concurrent: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    ledger: dict[str, object]
    kernels: dict[str, object]
    device: str
    load: Load
    hidden_size: int = 0
    poolings: frozenset[PoolingKind] = frozenset()
    has_experts: bool = False


@dataclass(frozen=True, slots=True)
class Fatal:
    """The engine cannot go on; the process ends after this.

    Attributes:
        reason: CamelCase word of :mod:`wisp_runtime.errors` (``DoesNotFit``, ``WeightsUnreadable``, …).
        message: error, place and remedy.
        exit_code: exit status for the server's process.
    """

    reason: str
    message: str
    exit_code: int = 1
    details: dict[str, object] = field(default_factory=dict)


ToEngine = Submit | Abort | ReadExperts | Shutdown
FromEngine = StepOutput | ExpertReport | Phase | Ready | Fatal
