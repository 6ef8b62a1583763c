"""How an answer is to be made: the fields that all endpoints which write text share.

Names are OpenAI's (https://platform.openai.com/docs/api-reference), those of sampling beyond
that llama-server's and ours.
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from umbel.errors import OptionError, SamplingError
from umbel.extras import grammar
from umbel.model import Model
from umbel.sampling import Settings
from umbel.server.fields import Fields
from umbel.server.limits import Limits

SEED = 1 << 63
ALIASES = {  # llama-server's and others' names of ours
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "typical_p": "typical",
    "dry_penalty_last_n": "dry_last_n",
    "dry_sequence_breakers": "dry_breakers",
}
# those that are read by themselves, below
OTHERS = {"logit_bias", "seed", "json_schema", "regex", "grammar", "samplers", "dry_breakers"}
NUMBERS = [f.name for f in attrs.fields(Settings) if f.name not in OTHERS]


@attrs.frozen(kw_only=True)
class Asked:
    """What a request asks for, checked. `settings` are those of `Model.generate`."""

    n: int
    stream: bool
    usage: bool  # in the last chunk of a stream
    settings: dict[str, Any]
    sampling: Settings

    def each(self, i: int, **more: Any) -> dict[str, Any]:
        """Those of the i-th answer: seeds count up."""
        seed = self.sampling.seed
        chosen = self.sampling if seed is None else attrs.evolve(self.sampling, seed=seed + i)
        return {**self.settings, "sampling": chosen, **more}


def asked(
    fields: Fields, model: Model, limits: Limits, *, limit: str = "max_tokens", **more: Any
) -> Asked:
    """Reads them; `limit` names the field that bounds the answer, `more` are settings that the
    endpoint has read itself: of sampling, those of a constraint."""
    most = limits.max_tokens or 1 << 31
    n = fields.integer("n", 1, 1, limits.n)
    stream = fields.boolean("stream")
    options = fields.inner("stream_options")
    length = fields.integer(limit, -1, -1, 1 << 31)
    settings: dict[str, Any] = {
        "max_tokens": min(length, most) if length >= 0 else limits.max_tokens,
        "stop": _stops(fields, limits),
        "adapters": adapters(fields, model),
    }
    if fields.has("draft_max"):
        settings["draft_max"] = fields.integer("draft_max", None, 0, 1 << 16)
    usage = options.boolean("include_usage") if options else False
    sampling = _sampling(fields, model, limits, more)
    return Asked(n=n, stream=stream, usage=usage, settings=settings, sampling=sampling)


def _stops(fields: Fields, limits: Limits) -> list[str]:
    given = fields.data.get("stop")
    stops = [given] if isinstance(given, str) else fields.items("stop", 0, limits.stops)
    if not all(isinstance(s, str) and len(s) <= limits.stop_length for s in stops):
        fields.refuse("stop", f"texts of {limits.stop_length} characters at most")
    return [s for s in stops if s]


def adapters(fields: Fields, model: Model) -> dict[str, float] | None:
    """By our names, or llama-server's numbers; None: those that everybody gets."""
    if fields.has("adapters"):
        named = fields.inner("adapters")
        assert named is not None
        return {name: named.number(name, 1.0, -1e3, 1e3) for name in named.data}
    if fields.data.get("lora") is None:
        return None
    names, wanted = model.adapters, dict[str, float]()
    for i, item in enumerate(fields.items("lora")):
        one = Fields.of(item, fields.name(f"lora[{i}]"))
        number = one.integer("id", None, 0, len(names) - 1)
        if number is None or names[number] in wanted:
            one.refuse("id", "the number of an adapter, each once")
        wanted[names[number]] = one.number("scale", 1.0, -1e3, 1e3)
    return wanted


def _sampling(fields: Fields, model: Model, limits: Limits, more: dict[str, Any]) -> Settings:
    given: dict[str, Any] = dict(more)
    for name, value in fields.data.items():
        field = ALIASES.get(name, name)
        if field in NUMBERS and value is not None:
            given[field] = value
    for name, field in [(n, n) for n in ("samplers", "dry_breakers")] + [
        ("dry_sequence_breakers", "dry_breakers")
    ]:
        if fields.has(name):
            given[field] = tuple(fields.items(name, 0, 64))
    given["seed"] = _seed(fields)
    if fields.has("logit_bias"):
        given["logit_bias"] = _biases(fields, model)
    for name in ("json_schema", "regex", "grammar"):
        if fields.has(name) and not more:
            given[name] = _constraint(fields, name, limits)
    made = Settings(**given)
    if made.constraint:
        try:
            grammar.checked(*made.constraint)
        except OptionError as error:  # the extra is not here: nothing that the request can mend
            raise SamplingError(error.what, where=made.constraint[0], do=error.do) from error
    return made


def _seed(fields: Fields) -> int | None:
    """-1 is none, as llama-server has it."""
    seed = fields.integer("seed", None, -1, SEED - 1 - (1 << 16))
    return None if seed == -1 else seed


def _biases(fields: Fields, model: Model) -> dict[int, float]:
    """OpenAI's mapping from ids, or llama-server's list of pairs; false forbids a token."""
    given = fields.data["logit_bias"]
    pairs = given.items() if isinstance(given, dict) else given
    made: dict[int, float] = {}
    try:
        for token, bias in pairs:
            number = int(token)
            if isinstance(token, bool | float) or not 0 <= number < model.tokenizer.n_vocab:
                fields.refuse("logit_bias", f"ids below {model.tokenizer.n_vocab}")
            made[number] = -float("inf") if bias is False else bias
    except (TypeError, ValueError):
        fields.refuse("logit_bias", "a mapping from token ids to numbers")
    return made


def _constraint(fields: Fields, name: str, limits: Limits) -> Any:
    value = fields.data[name]
    if name != "json_schema" and not isinstance(value, str):
        fields.refuse(name, "a text")
    return bounded(value, fields.name(name), limits)


def bounded(schema: Any, where: str, limits: Limits) -> Any:
    """A schema or grammar that is not too long."""
    size = len(schema if isinstance(schema, str) else json.dumps(schema))
    if size > limits.schema:
        msg = "a schema or grammar is too long"
        raise OptionError(msg, where=where, expected=f"{limits.schema} characters", got=size)
    return schema


def response_format(fields: Fields, limits: Limits) -> dict[str, Any]:
    """OpenAI's way to ask for JSON, as a setting of sampling."""
    wanted = fields.inner("response_format")
    if wanted is None:
        return {}
    kind = wanted.choice("type", ("text", "json_object", "json_schema"), "text")
    if kind == "text":
        return {}
    schema = wanted.data.get("schema")  # llama-server takes one here
    if kind == "json_schema":
        inner = wanted.inner("json_schema")
        schema = inner.data.get("schema") if inner else schema
        if not isinstance(schema, dict):
            wanted.refuse("json_schema", "an object with a schema")
    if schema is None:
        return {"json_schema": True}
    return {"json_schema": bounded(schema, wanted.name("json_schema"), limits)}
