"""Fields of the API that would change the output and are not implemented: refused by name."""

from __future__ import annotations

from typing import Any

from wisp_runtime.server.api.errors import unsupported
from wisp_runtime.server.parsing.generation_request import GenerationRequest

# Field → (values that ask for the default, remedy).
UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "functions": (([],), "It is deprecated: send the functions as 'tools'."),
    "function_call": (("none", "auto"), "It is deprecated: use 'tools' and 'tool_choice'."),
    "response_format": (({"type": "text"},), "Ask for the format in a message."),
    "modalities": ((["text"],), "Answers are text only."),
    "audio": ((), "Answers are text only."),
    "prediction": ((), "Leave it out."),
    "reasoning_effort": ((), "Set what the model's template knows in chat_template_kwargs."),
    "verbosity": ((), "Ask for it in a message."),
    "web_search_options": ((), "This server reads nothing from the web."),
    "suffix": (("",), "Models here continue text; they do not fill gaps."),
    "best_of": ((1,), "Set n and choose yourself."),
}


def refuse_unsupported(request: GenerationRequest) -> None:
    """Refuse fields that would change the output and are not implemented.

    Raises:
        ApiError: 400, naming the field.
    """
    for name, (neutral, instead) in UNSUPPORTED.items():
        value = getattr(request, name, None)
        if value is not None and value not in neutral:
            raise unsupported(name, instead)
    if request.stream_options is not None and not request.stream:
        raise unsupported("stream_options", "It is only for streams: set stream to true.")
