"""An answer as a message: its text, what the model thought, and the calls in it."""

from __future__ import annotations

from typing import Any

import attrs

from umbel.server.tools import Arguments, CallStart, Parser, Piece, Reasoning, Text


@attrs.define(eq=False)
class Message:
    """Grows as text comes; `push` and `finish` give what is new as OpenAI's deltas."""

    parser: Parser
    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = attrs.field(factory=list)

    def push(self, text: str) -> list[dict[str, Any]]:
        return [self._take(piece) for piece in self.parser.push(text)] if text else []

    def finish(self) -> list[dict[str, Any]]:
        """No more text comes."""
        return [self._take(piece) for piece in self.parser.finish()]

    def _take(self, piece: Piece) -> dict[str, Any]:
        """What a delta says of it."""
        match piece:
            case Text(text):
                self.content += text
                return {"content": text}
            case Reasoning(text):
                self.reasoning += text
                return {"reasoning_content": text}
            case CallStart(index, number, name):
                function = {"name": name, "arguments": ""}
                call = {"id": number, "type": "function", "function": function}
                self.calls.append({**call, "function": dict(function)})
                return {"tool_calls": [{"index": index, **call}]}
            case Arguments(index, fragment):  # the last kind
                self.calls[index]["function"]["arguments"] += fragment
                return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}

    def whole(self) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant", "content": self.content, "refusal": None}
        if self.reasoning:
            made["reasoning_content"] = self.reasoning
        if self.calls:
            made |= {"tool_calls": self.calls, "content": self.content or None}
        return made

    def reason(self, given: str | None) -> str | None:
        """Why it ended; a call that is whole ends it, too."""
        return "tool_calls" if self.calls and given == "stop" else given
