"""One served model: engine, tokenizer, admission of requests.

Shared by the endpoints. Holds no sockets and handles no signals; ``process.py`` does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.client import Engine
from wisp_runtime.engine.transport.messages import Fatal, Load, Phase, Ready
from wisp_runtime.errors import ConfigError
from wisp_runtime.server.answers.tools.format import Channels, ToolFormat
from wisp_runtime.server.answers.tools.registry import FORMATS, format_of
from wisp_runtime.server.api.errors import ApiError, unavailable, unknown_model
from wisp_runtime.server.api.generation import Generator
from wisp_runtime.server.api.logprobs import TokenNames
from wisp_runtime.server.error_budget import ErrorBudget
from wisp_runtime.server.metrics import Telemetry
from wisp_runtime.server.parsing.defaults import AnswerDefaults
from wisp_runtime.server.parsing.reasoning import ReasoningSupport
from wisp_runtime.server.pooling.settings import PoolingSettings
from wisp_runtime.server.structured.checks import GrammarChecks
from wisp_runtime.server.text.template_messages import ChatTemplate
from wisp_runtime.server.text.template_renderer import TemplateRenderer
from wisp_runtime.server.text.text_threads import TextThreads
from wisp_runtime.server.text.tokenizer import ModelTokenizer

Status = Literal["starting", "loading", "warming", "ready", "draining", "failed"]
LOADING_PHASES = frozenset({"pull", "weights", "kernels"})
START_RETRY_S = 2
DRAIN_RETRY_S = 1


@dataclass(frozen=True)
class TextCodec:
    """Tokenizer and chat template read from ``path``, and the generator that decodes with it.

    Attributes:
        names: names of the tokens, for log-probabilities.
        templates: renderer of the chat template; None for a base model.
        defaults: the model's own end tokens and sampling parameters.
        tool_format: markup of its tool calls; None: it calls none.
        reasoning: ways in which its thinking is seen and steered.
    """

    path: Path
    tokenizer: ModelTokenizer
    templates: TemplateRenderer | None
    generator: Generator
    names: TokenNames
    defaults: AnswerDefaults
    tool_format: ToolFormat | None = None
    reasoning: ReasoningSupport = field(default_factory=ReasoningSupport)

    @property
    def channels(self) -> Channels | None:
        """Format whose parser reads every answer, its thinking included; None: there is no such format."""
        if isinstance(self.tool_format, Channels):
            return self.tool_format
        thinking = self.reasoning.format
        splitting = FORMATS[thinking.channels] if thinking is not None and thinking.channels else None
        return splitting if isinstance(splitting, Channels) else None

    def token_names(self, *, as_ids: bool) -> TokenNames:
        """Return the names of tokens, or with ``as_ids`` names that are their ids."""
        return TokenNames(self.tokenizer, as_ids=True) if as_ids else self.names


class Service:
    """The model behind the endpoints.

    Attributes:
        failure: reason for which the process is about to end, or None.
        is_draining: True once new requests are refused because of a stop signal.
        active: requests to ``/v1`` with an unfinished response.
        pooling: the model's way to make vectors and scores of texts.
    """

    def __init__(self, config: ServeConfig, engine: Engine, *, created_s: int) -> None:
        self.config = config
        self.engine = engine
        self.created_s = created_s
        self.budget = ErrorBudget()
        self.telemetry = Telemetry(
            config.name,
            lambda: engine.load,
            lambda: engine.phases,
            config.block_tokens,
            lambda: engine.info,
            lambda: engine.experts,
        )
        self.failure: Fatal | None = None
        self.is_draining = False
        self.threads = TextThreads()
        self.pooling = PoolingSettings()
        self.grammars = GrammarChecks()
        self._text: TextCodec | None = None
        self._active = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def open(
        self,
        path: Path,
        tokenizer: ModelTokenizer,
        templates: TemplateRenderer | None,
        defaults: AnswerDefaults,
    ) -> None:
        """Set the tokenizer; with a ready engine, requests are admitted."""
        generator = Generator(self.engine, tokenizer, self.telemetry, self.budget)
        template = templates.template if templates is not None else None
        tool_format = _tool_format(template, self.config.tool_parser)
        reasoning = ReasoningSupport.of(template, tokenizer, self.config.reasoning_parser)
        _require_one_splitter(tool_format, reasoning)
        ends = tokenizer.special_tokens_among(tool_format.ends) if tool_format is not None else ()
        self._text = TextCodec(
            path,
            tokenizer,
            templates,
            generator,
            TokenNames(tokenizer),
            defaults.ending_also(ends),
            tool_format,
            reasoning,
        )

    async def close(self) -> None:
        """End the threads and processes that work on texts."""
        self.threads.close()
        self.grammars.close()
        if self._text is not None and self._text.templates is not None:
            await self._text.templates.close()

    def has_running(self) -> bool:
        """Return whether any sequence waits for tokens of the engine."""
        return self._text is not None and self._text.generator.has_running

    def abort_all(self) -> None:
        """Abort every running sequence; its response ends with ``server_stopping``."""
        if self._text is not None:
            self._text.generator.abort_all()

    def check_name(self, name: str) -> None:
        """Check that a request means this model.

        Raises:
            ApiError: 404; it names another one.
        """
        if name not in self.config.names:
            raise unknown_model(name, self.config.names)

    @property
    def text(self) -> TextCodec:
        """Tokenizer and generator; valid while :meth:`admit` admits requests."""
        assert self._text is not None
        return self._text

    @property
    def info(self) -> Ready:
        """Capabilities of the engine; valid while :meth:`admit` admits requests."""
        assert self.engine.info is not None
        return self.engine.info

    @property
    def status(self) -> Status:
        """Status of the process, as ``/readyz`` and ``/state`` report it."""
        if self.failure is not None:
            return "failed"
        if self.is_draining:
            return "draining"
        if self.engine.ready.is_set() and self._text is not None:
            return "ready"
        begun = {phase.name for phase in self.engine.phases}
        if "firstToken" in begun:
            return "warming"
        return "loading" if begun & LOADING_PHASES else "starting"

    def admit(self) -> None:
        """Admit a request.

        Raises:
            ApiError: 503 with ``Retry-After``.
        """
        match self.status:
            case "ready":
                return
            case "draining":
                raise unavailable("The server is stopping; try again.", "server_stopping", DRAIN_RETRY_S)
            case "failed":
                assert self.failure is not None
                raise _broken(self.failure)
            case status:
                message = f"The model is not ready yet ({status}, phase {self.phase}); try again."
                raise unavailable(message, "model_not_ready", START_RETRY_S)

    @property
    def phase(self) -> str | None:
        """The latest start-up phase, or None before the first."""
        phases = self.engine.phases
        return phases[-1].name if phases else None

    def enter(self) -> None:
        """Count a request in."""
        self._active += 1
        self._is_idle.clear()

    def leave(self) -> None:
        """Count a request out."""
        self._active -= 1
        if self._active == 0:
            self._is_idle.set()

    @property
    def active(self) -> int:
        """Requests to ``/v1`` with an unfinished response."""
        return self._active

    async def idle(self) -> None:
        """Wait until no request is active."""
        await self._is_idle.wait()

    def state(self, tokens_per_second: float) -> dict[str, Any]:
        """Return the body of ``/state``, as ``docs/contracts.md`` specifies it."""
        info, failure = self.engine.info, self.failure
        return {
            "model": self.config.name,
            "path": str(self._text.path) if self._text else self.config.model,
            "device": info.device if info else self.config.device,
            "status": self.status,
            "phases": [_phase_state(phase) for phase in self.engine.phases],
            "ledger": info.ledger if info else None,
            "kernels": info.kernels if info else None,
            "load": _load_state(self.engine.load, tokens_per_second),
            "defaults": self._text.defaults.sampling_defaults() if self._text else None,
            "error": {"reason": failure.reason, "message": failure.message} if failure else None,
        }


def _tool_format(template: ChatTemplate | None, wanted: str) -> ToolFormat | None:
    """Return the markup of a model's calls; a template that reads no tools is given them in Hermes' words."""
    shown = format_of(template.source if template is not None else None, wanted)
    if wanted == "auto" and template is not None and not template.reads("tools"):
        return shown if isinstance(shown, Channels) else FORMATS["hermes"]
    return shown


def _require_one_splitter(tool_format: ToolFormat | None, reasoning: ReasoningSupport) -> None:
    thinking = reasoning.format
    if thinking is None or not thinking.channels or tool_format is None:
        return
    if tool_format.name != thinking.channels:
        raise ConfigError(
            f"--reasoning-parser {thinking.name} reads calls out of its channels, and --tool-parser "
            f"{tool_format.name} out of text. Name {thinking.channels} or none for both, or leave out both."
        )


def _broken(failure: Fatal) -> ApiError:
    return ApiError(
        503, f"The server has failed ({failure.reason}): {failure.message}", code="server_failed",
        headers={"Retry-After": str(START_RETRY_S)},
    )  # fmt: skip


def _phase_state(phase: Phase) -> dict[str, Any]:
    return {
        "name": phase.name,
        "seconds": round(phase.seconds, 4),
        "state": "done" if phase.is_done else "running",
        "bytes": phase.bytes,
        "totalBytes": phase.total_bytes,
    }


def _load_state(load: Load, tokens_per_second: float) -> dict[str, Any]:
    return {
        "waiting": load.waiting,
        "running": load.running,
        "kvBlocksUsed": load.kv_blocks_used,
        "kvBlocksTotal": load.kv_blocks_total,
        "generatedTokensTotal": load.generated_tokens_total,
        "promptTokensTotal": load.prompt_tokens_total,
        "cachedTokensTotal": load.cached_tokens_total,
        "tokensPerSecond": round(tokens_per_second, 2),
        "steps": load.steps,
    }
