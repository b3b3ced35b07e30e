"""JSON of completions: chunks of a stream, and complete choices."""

from __future__ import annotations

from collections.abc import Sequence

from wisp_runtime.server.answers.parts import AnswerDelta
from wisp_runtime.server.api.logprobs import CompletionLogprobs, PromptReport, TokenNames, to_json
from wisp_runtime.server.api.respond import stop_reason


class CompletionFormatter:
    """One choice of a completion.

    Args:
        index: number of the choice in a stream.
        names: names of tokens.
        echo: text before the generated one.
        report: report of the prompt's log-probabilities, which may be of other choices too; or None.
        prompt_ids: tokens of the prompt, if token ids are reported.
    """

    def __init__(
        self,
        index: int,
        names: TokenNames,
        echo: str,
        *,
        with_logprobs: bool,
        report: PromptReport | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> None:
        self._index = index
        self._names = names
        self._with_logprobs = with_logprobs
        self._report = report
        self._echo = echo
        self._echo_chars = len(echo)
        self._texts = [echo]
        self._logprobs = CompletionLogprobs(names)
        self._last = AnswerDelta(())
        self._with_ids, self._prompt_ids = prompt_ids is not None, prompt_ids
        self._token_ids: list[int] = []

    def chunks(self, delta: AnswerDelta) -> list[str]:
        """Return one chunk, or none if it would be empty."""
        echo, self._echo = self._echo, ""
        logprobs = None
        if self._with_logprobs:
            (logprobs := CompletionLogprobs(self._names)).add(delta, self._echo_chars + delta.begin)
        ids = self._ids(delta)
        if not (echo or delta.text or delta.finish or logprobs or ids):
            return []
        chunk = self._choice(self._index, echo + delta.text, logprobs, delta, ids)
        self._prompt_ids = self._report = None
        return [chunk]

    def add(self, delta: AnswerDelta) -> int:
        """Keep a delta for the complete text; return the characters that are kept."""
        added_chars = 0
        if self._with_logprobs:
            added_chars = self._logprobs.add(delta, self._echo_chars + delta.begin)
        self._texts.append(delta.text)
        self._token_ids += self._ids(delta)
        self._last = delta
        return len(delta.text) + added_chars

    def choice(self, index: int) -> str:
        """Return the complete text as choice ``index``."""
        logprobs = self._logprobs if self._with_logprobs else None
        return self._choice(index, "".join(self._texts), logprobs, self._last, self._token_ids)

    def _ids(self, delta: AnswerDelta) -> list[int]:
        return [] if delta.generated is None or not self._with_ids else [delta.generated]

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None,
        last: AnswerDelta,
        token_ids: Sequence[int],
    ) -> str:
        ids = f',"token_ids":{to_json(token_ids)}' if self._with_ids else ""
        prompt_ids = "" if self._prompt_ids is None else f',"prompt_token_ids":{to_json(self._prompt_ids)}'
        before = None if self._report is None else self._report.echo
        return (
            f'{{"index":{index},"text":{to_json(text)},'
            f'"logprobs":{logprobs.text(before) if logprobs else "null"},'
            f'"finish_reason":{to_json(last.finish)}{stop_reason(last.stop)}{ids}{prompt_ids}{self._scores()}}}'
        )

    def _scores(self) -> str:
        has_scores = self._report is not None and self._report.has_list
        return f',"prompt_logprobs":{self._report.text()}' if has_scores and self._report is not None else ""
