"""Tools and choices among them that are written as for another API, told before their fields are checked."""

from __future__ import annotations

from typing import Any

_ANTHROPICS_CHOICES = ("auto", "any", "none", "tool")
_OWN_KINDS = (None, "function", "custom")


def refuse_foreign_chat_tool(tool: Any) -> None:
    """Refuse a tool of chat whose name is not under ``function``.

    Raises:
        ValueError: with the form to write.
    """
    if not isinstance(tool, dict) or "function" in tool or "name" not in tool or not _is_own(tool):
        return
    renamed = "; Anthropic's 'input_schema' is called 'parameters' here" * ("input_schema" in tool)
    raise ValueError(
        "put name, description and parameters under 'function', beside type 'function'" + renamed + "."
    )


def refuse_foreign_response_tool(tool: Any) -> None:
    """Refuse a tool of Responses whose name is under ``function``, as chat has it, or that is Anthropic's.

    Raises:
        ValueError: with the form to write.
    """
    if not isinstance(tool, dict) or not _is_own(tool):
        return
    if isinstance(tool.get("function"), dict):
        raise ValueError("put name, description and parameters beside type 'function', not under 'function'.")
    if "input_schema" in tool:
        raise ValueError("set type to 'function'; Anthropic's 'input_schema' is called 'parameters' here.")


def refuse_foreign_message_tool(tool: Any) -> None:
    """Refuse a tool of Messages that is OpenAI's, of chat or of Responses.

    Raises:
        ValueError: with the form to write.
    """
    if isinstance(tool, dict) and (tool.get("type") == "function" or isinstance(tool.get("function"), dict)):
        raise ValueError(
            "a tool has name, description and input_schema here, without type 'function'; OpenAI's "
            "'parameters' is called 'input_schema'."
        )


def refuse_foreign_openai_choice(choice: Any, form: str) -> None:
    """Refuse a ``tool_choice`` of OpenAI's APIs that is Anthropic's.

    Args:
        choice: value of the field.
        form: JSON that names a function in this API.

    Raises:
        ValueError: with the form to write.
    """
    if isinstance(choice, dict) and choice.get("type") in _ANTHROPICS_CHOICES:
        raise ValueError(f"write 'auto', 'required' (Anthropic's 'any') or 'none' as a string, or {form}.")


def refuse_flat_choice(choice: Any, form: str) -> None:
    """Refuse a function that is named as Responses names it, in a body of chat.

    Raises:
        ValueError: with the form to write.
    """
    if isinstance(choice, dict) and "name" in choice and "function" not in choice:
        raise ValueError(f"write {form}.")


def refuse_nested_choice(choice: Any, form: str) -> None:
    """Refuse a function that is named as chat names it, in a body of Responses.

    Raises:
        ValueError: with the form to write.
    """
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        raise ValueError(f"write {form}.")


def refuse_foreign_message_choice(choice: Any) -> None:
    """Refuse a ``tool_choice`` of Messages that is OpenAI's.

    Raises:
        ValueError: with the form to write.
    """
    if isinstance(choice, str) or (isinstance(choice, dict) and choice.get("type") == "function"):
        raise ValueError(
            """write {"type": "auto"}, {"type": "any"} (OpenAI's 'required'), {"type": "none"} or """
            """{"type": "tool", "name": "…"}."""
        )


def _is_own(tool: dict[Any, Any]) -> bool:
    """Return whether a tool is one that the client runs, by its type: others have refusals of their own."""
    kind = tool.get("type")
    return kind in _OWN_KINDS if kind is None or isinstance(kind, str) else False
