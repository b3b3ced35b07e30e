"""Items on their way into the store and out of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.api.responses.store import ResponseStore, StoredItem, Turn
from wisp_runtime.server.parsing.responses.items import ContentItem, InputItem, ItemReference

_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])


def parsed_items(texts: Sequence[str]) -> list[ContentItem]:
    """Return items of the store as a request would bring them.

    Raises:
        ApiError: 400; the model wrote one that no request may bring, such as a call without a name.
    """
    try:
        items = _ITEMS.validate_python([json.loads(text) for text in texts])
    except ValidationError as error:
        _, *steps = error.errors(include_url=False, include_input=False)[0]["loc"]
        place = ".".join(str(step) for step in steps if not str(step).startswith("("))  # a tag
        raise bad_request(
            f"An item of the former response cannot be sent to the model again ({place[:80]}): "
            "send the input to go on from instead.",
            "previous_response_id",
            "invalid_value",
        ) from error
    return [item for item in items if not isinstance(item, ItemReference)]


def input_turn(given: Sequence[ContentItem]) -> Turn:
    """Return the items of a request as the store keeps them."""
    return Turn(tuple(map(_stored, given)))


def resolved(given: Sequence[InputItem], store: ResponseStore, account: str) -> list[ContentItem]:
    """Return the items of a request with each reference replaced by what it refers to.

    Raises:
        ApiError: 400; the store has no such item of this account.
    """
    items: list[ContentItem] = []
    for index, item in enumerate(given):
        if not isinstance(item, ItemReference):
            items.append(item)
            continue
        kept = store.item(item.id, account)
        if kept is None:
            raise bad_request(
                f"Item {item.id[:80]!r} is not stored here (any more). Send the item itself.",
                f"input.{index}.id",
                "item_not_found",
            )
        items += parsed_items([kept[1]])
    return items


def _stored(item: ContentItem) -> StoredItem:
    fields = item.to_dict()
    return fields["id"], to_json(fields)
