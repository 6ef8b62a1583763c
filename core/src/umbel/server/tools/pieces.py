"""What an answer is made of, piece by piece as it comes."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable
from typing import TypeAlias

import attrs

_LETTERS = string.ascii_letters + string.digits


@attrs.frozen
class Text:
    text: str


@attrs.frozen
class Reasoning:
    text: str


@attrs.frozen
class CallStart:
    index: int
    id: str
    name: str


@attrs.frozen
class Arguments:
    """A part of the JSON text of an object: those of one index, joined, are that text."""

    index: int
    fragment: str


Piece: TypeAlias = Text | Reasoning | CallStart | Arguments


def new_id() -> str:
    return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one kind as one: the parser makes them character by character."""
    runs: list[tuple[Piece, list[str]]] = []
    for piece in pieces:
        last = runs[-1][0] if runs else None
        match piece, last:
            case (Text(text), Text()) | (Reasoning(text), Reasoning()):
                runs[-1][1].append(text)
            case Arguments(i, text), Arguments(j) if i == j:
                runs[-1][1].append(text)
            case Text(text) | Reasoning(text) | Arguments(_, text), _:
                runs.append((piece, [text]))
            case _:
                runs.append((piece, []))
    return [_with(piece, "".join(texts)) for piece, texts in runs]


def _with(piece: Piece, text: str) -> Piece:
    match piece:
        case Text() | Reasoning():
            return attrs.evolve(piece, text=text)
        case Arguments():
            return attrs.evolve(piece, fragment=text)
    return piece
