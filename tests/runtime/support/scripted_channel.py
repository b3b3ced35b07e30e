"""The server's end of an engine's loop: sends every request at once, and leaves when all are answered."""

from __future__ import annotations

from wisp_runtime.engine.transport.messages import Shutdown


class ScriptedChannel:
    """See :class:`wisp_runtime.engine.loop.Channel`.

    Attributes:
        tokens: tokens of each request, by its id.
        events: all events, in order.
    """

    def __init__(self, *requests):
        self.events = []
        self.inbox, self.tokens = list(requests), {request.request_id: [] for request in requests}

    def receive(self, *, waits):
        messages, self.inbox = self.inbox or ([Shutdown()] if waits else []), []
        return messages

    def send(self, message):
        for event in message.events:
            self.events.append(event)
            if event.token is not None or event.finish is not None:  # else: log-probabilities of its prompt
                self.tokens[event.request_id].append(event.token)
