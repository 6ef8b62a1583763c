"""Rotary embeddings: from a configuration to metadata keys, and the tensors that scale them.

Up to transformers 4 a configuration has `rope_theta` beside `rope_scaling`, since 5 both are in
`rope_parameters`, perhaps one for each kind of layer.
"""

import math
from typing import Any

import numpy as np

from umbel.tools.convert.folder import Config


def rope_of(c: Config, kind: str, *theta: float) -> Config:
    """The parameters of the layers of a kind ("full_attention"), in the new form.

    Without a default `theta` the configuration must have it.
    """
    found: dict[str, Any] = c.get("rope_parameters", dict, {})
    found = found.get(kind, found) if isinstance(found.get(kind, {}), dict) else found
    if not found:
        found = dict(c.get("rope_scaling", dict, {}))
        found["rope_theta"] = c.real("rope_theta", *theta)
        # A base of its own: the scaling is that of the layers that see everything.
        if kind == "sliding_attention":
            found = {"rope_theta": c.real("rope_local_base_freq", found["rope_theta"])}
    return Config(found, f"{c.where}, its rope")


def rope_kind(rope: Config) -> str:
    old: str = rope.get("type", str, "default")
    kind: str = rope.get("rope_type", str, old)
    return "longrope" if kind == "su" else kind


def rope_keys(c: Config, rope: Config, head_dim: int) -> dict[str, Any]:
    """The keys of the rotary embedding of layers that see everything."""
    kind = rope_kind(rope)
    part = rope.positive("partial_rotary_factor", c.real("partial_rotary_factor", 1.0))
    keys: dict[str, Any] = {"rope.freq_base": rope.positive("rope_theta")}
    keys["rope.dimension_count"] = int(head_dim * part)
    if kind in ("default", "llama3"):
        return keys  # llama3 is a tensor
    if kind == "linear":
        return {
            **keys,
            "rope.scaling.type": kind,
            "rope.scaling.factor": rope.positive("factor"),
        }
    if kind not in ("yarn", "longrope"):
        known = ("default", "linear", "llama3", "yarn", "longrope")
        Config({"rope_type": kind}, rope.where).only("rope_type", *known)
    trained = c.count("max_position_embeddings")
    before = c.count("original_max_position_embeddings", trained)
    before = rope.count("original_max_position_embeddings", before)
    if before < 2:
        rope.refuse("original_max_position_embeddings", "2 or more", before)
    factor = rope.positive("factor", trained / before)
    keys["rope.scaling.type"] = kind
    keys["rope.scaling.original_context_length"] = before
    if kind == "longrope":
        long = math.sqrt(1 + math.log(factor) / math.log(before)) if factor > 1 else 1.0
        return {**keys, "rope.scaling.attn_factor": rope.real("attention_factor", long)}
    rope.only("truncate", True)
    whole = _yarn(factor, 1.0)
    if rope.real("mscale", 0.0) and rope.real("mscale_all_dim", 0.0):
        whole = _yarn(factor, rope.positive("mscale"))
        whole /= _yarn(factor, rope.positive("mscale_all_dim"))
    keys["rope.scaling.factor"] = factor
    keys["rope.scaling.yarn_attn_factor"] = rope.real("attention_factor", whole)
    keys["rope.scaling.yarn_beta_fast"] = rope.real("beta_fast", 32.0)
    keys["rope.scaling.yarn_beta_slow"] = rope.real("beta_slow", 1.0)
    return keys


def _yarn(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_tensors(c: Config, rope: Config, n_dims: int) -> dict[str, np.ndarray]:
    """What divides each frequency, of the two kinds that are kept so."""
    kind = rope_kind(rope)
    if kind == "llama3":
        return {"rope_freqs.weight": _llama3(c, rope, n_dims)}
    if kind != "longrope":
        return {}
    made = {}
    for name in ("long", "short"):
        key = f"{name}_factor"
        factors = rope.get(key, list)
        if len(factors) != n_dims // 2 or not all(type(f) in (int, float) for f in factors):
            rope.refuse(key, f"{n_dims // 2} numbers", factors)
        made[f"rope_factors_{name}.weight"] = np.array(factors, np.float32)
    return made


def _llama3(c: Config, rope: Config, n_dims: int) -> np.ndarray:
    """Llama 3.1's: the factor stretches long waves, not short ones, partly those between."""
    factor, low = rope.real("factor"), rope.real("low_freq_factor")
    high = rope.real("high_freq_factor")
    before = rope.real("original_max_position_embeddings", c.real("max_position_embeddings"))
    if not (factor > 0 and 0 < low < high):
        rope.refuse("low_freq_factor", "0 < low_freq_factor < high_freq_factor", (low, high))
    exponents = np.arange(0, n_dims, 2, dtype=np.float64) / n_dims
    turns = before / (2 * math.pi * rope.positive("rope_theta") ** exponents)  # in that context
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - kept) / factor + kept)).astype(np.float32)
