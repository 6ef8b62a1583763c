"""Tools: what a request offers, how models are told of it, and the calls that they write."""

from umbel.server.tools.constraint import constraint
from umbel.server.tools.families import FAMILIES, Family, family_of
from umbel.server.tools.messages import messages_for_template
from umbel.server.tools.offers import Choice, Tool, checked, checked_choice, checked_tools
from umbel.server.tools.parser import Parser
from umbel.server.tools.pieces import Arguments, CallStart, Piece, Reasoning, Text, new_id

__all__ = [
    "FAMILIES",
    "Arguments",
    "CallStart",
    "Choice",
    "Family",
    "Parser",
    "Piece",
    "Reasoning",
    "Text",
    "Tool",
    "checked",
    "checked_choice",
    "checked_tools",
    "constraint",
    "family_of",
    "messages_for_template",
    "new_id",
]
