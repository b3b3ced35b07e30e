"""Translate a Responses body into a chat's, and errors of the chat's fields back. Pure.

Items of one turn of the model become one assistant's message: thinking, then text, then calls, as templates
write it, so that a conversation that is continued has the same prompt as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wisp_runtime.server.api.errors import ApiError, bad_request, unsupported
from wisp_runtime.server.parsing.body import checked
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.responses.items import (
    ContentItem,
    FunctionCallItem,
    FunctionOutputItem,
    MessageItem,
    ReasoningItem,
)
from wisp_runtime.server.parsing.responses.request import LOGPROBS, PASSED, ResponsesRequest
from wisp_runtime.server.parsing.responses.tools import name_in_chat, tools_in_chat

LEADING_ROLES = ("system", "developer")
RENAMED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
"""Fields of a chat's body: their names here."""


@dataclass
class Messages:
    """Messages of a chat, made of items.

    Attributes:
        messages: messages as a chat's body has them.
        places: names of the fields that they come from.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    _is_open: bool = False  # whether the last message is a turn of the model that may go on

    def add(self, item: ContentItem, place: str) -> None:
        """Add an item.

        Raises:
            ApiError: its thinking cannot be read.
        """
        match item:
            case ReasoningItem():
                self._think(item, place)
            case FunctionCallItem():
                self._call(item, place)
            case MessageItem(role="assistant"):
                self._say("\n".join(item.content), place)
            case MessageItem():
                self.append({"role": item.role, "content": "\n".join(item.content)}, place)
            case FunctionOutputItem():
                name = {"name": item.name} if item.name else {}
                message = {"role": "tool", "tool_call_id": item.call_id, "content": item.text, **name}
                self.append(message, place)

    def append(self, message: dict[str, Any], place: str) -> None:
        """Add a message that stands alone."""
        self.messages.append(message)
        self.places.append(place)
        self._is_open = False

    def instruct(self, instructions: str) -> None:
        """Put instructions before all messages, within the system's message if the first is one."""
        first = self.messages[0] if self.messages else {}
        if first.get("role") in LEADING_ROLES:
            self.messages[0] = {"role": "system", "content": f"{instructions}\n\n{first['content']}"}
            return
        self.messages.insert(0, {"role": "system", "content": instructions})
        self.places.insert(0, "instructions")

    def cuts(self) -> list[int]:
        """Return the places where a conversation may begin if what is before is left out: users' messages.

        The messages of the system at the beginning stay, and so does the last message of a user.
        """
        first = self._first()
        users = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        return [index for index in users if index > first]

    def without(self, cut: int) -> Messages:
        """Return the messages without those from the first turn up to place ``cut``."""
        first = self._first()
        return Messages(
            [*self.messages[:first], *self.messages[cut:]], [*self.places[:first], *self.places[cut:]]
        )

    def _first(self) -> int:
        """Return the place of the first message that is not of the system."""
        roles = [message["role"] for message in self.messages]
        return next((i for i, role in enumerate(roles) if role not in LEADING_ROLES), len(roles))

    def _begin_turn(self, place: str, **fields: Any) -> None:
        self.append({"role": "assistant", **fields}, place)
        self._is_open = True

    def _think(self, item: ReasoningItem, place: str) -> None:
        try:
            text = item.text
        except ValueError as error:
            raise bad_request(
                str(error), f"{place}.encrypted_content", "invalid_encrypted_content"
            ) from error
        if text:
            self._begin_turn(place, content="", reasoning_content=text)

    def _say(self, text: str, place: str) -> None:
        last = self.messages[-1] if self._is_open else {}
        if last and not last["content"] and "tool_calls" not in last:
            last["content"] = text
        else:
            self._begin_turn(place, content=text)

    def _call(self, item: FunctionCallItem, place: str) -> None:
        if not self._is_open:
            self._begin_turn(place, content="")
        function = {"name": name_in_chat(item.name, item.namespace), "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        self.messages[-1].setdefault("tool_calls", []).append(call)


def messages_of(
    request: ResponsesRequest, context: Sequence[ContentItem], given: Sequence[ContentItem]
) -> Messages:
    """Return the messages of a conversation.

    Args:
        request: body of the request.
        context: items of the responses before it.
        given: its own items, without references.

    Raises:
        ApiError: thinking of an item cannot be read.
    """
    messages = Messages()
    for item in context:
        messages.add(item, "previous_response_id")
    for index, item in enumerate(given):
        messages.add(item, f"input.{index}")
    if request.instructions:
        messages.instruct(request.instructions)
    return messages


def chat_request(request: ResponsesRequest, messages: Messages) -> ChatRequest:
    """Return the chat that asks for the same.

    Raises:
        ApiError: 400 naming a field of ``request``.
    """
    try:
        return checked(_fields(request) | {"messages": messages.messages}, ChatRequest)
    except ApiError as error:
        raise translated(error, messages.places) from error


def _fields(request: ResponsesRequest) -> dict[str, Any]:
    """Return the fields of a chat's body, besides its messages."""
    _refuse(request)
    fields = {name: getattr(request, name) for name in PASSED}
    fields |= {"model": request.model, "max_completion_tokens": request.max_output_tokens}
    if request.includes(LOGPROBS):
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.tools:
        fields["tools"] = tools_in_chat(request.tools)
    choice = request.tool_choice
    fields["tool_choice"] = choice if isinstance(choice, str | None) else choice.for_chat()
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    if request.text is not None:
        fields["verbosity"] = request.text.verbosity
        if request.text.format is not None and request.text.format.type != "text":
            fields["response_format"] = request.text.format.for_chat()
    return {name: value for name, value in fields.items() if value is not None}


def _refuse(request: ResponsesRequest) -> None:
    if request.top_logprobs and not request.includes(LOGPROBS):
        raise bad_request(f"'top_logprobs' needs {LOGPROBS!r} in 'include'.", "top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise unsupported("stream_options", "It is only for streams: set stream to true.")
    if request.reasoning is not None and request.reasoning.shown_summary == "concise":
        raise bad_request(
            "A concise summary is not supported: nothing shortens thinking. Ask for 'auto' or 'detailed'.",
            "reasoning.summary",
            "unsupported_parameter",
        )
    if request.background and not request.is_stored:
        raise bad_request(
            "'background' needs 'store': a response that nobody waits for has to be kept.", "background"
        )


def translated(error: ApiError, places: Sequence[str]) -> ApiError:
    """Return an error of a chat's field as one of the field that it comes from."""
    if error.param is None:
        return error
    first, _, rest = error.param.partition(".")
    param = RENAMED.get(first, first) + (f".{rest}" if rest else "")
    if first == "messages" and rest:
        index, _, _ = rest.partition(".")
        param = places[int(index)] if index.isdigit() and int(index) < len(places) else "input"
    elif first == "response_format":
        param = param.replace(".json_schema", "", 1)
    elif first == "tools":
        param = param.replace(".function.", ".", 1)
    message = error.message.replace(f"'{error.param}'", f"'{param}'")
    if message.startswith(f"{error.param} "):
        message = param + message[len(error.param) :]
    return ApiError(error.status, message, param=param, code=error.code, headers=error.headers)
