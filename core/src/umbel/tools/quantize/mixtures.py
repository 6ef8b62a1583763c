"""Which type each tensor gets: the mixtures of llama.cpp, as tables.

A mixture has a type for most tensors and spends more bits where they matter: on the output
matrix, and on attn_v and ffn_down of some layers. Reference: llama.cpp, src/llama-quant.cpp
(of 2026). Left out are the mixtures that need an importance matrix, and what it does
otherwise for Falcon and GLM-5.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

from umbel.errors import OptionError
from umbel.gguf import GGUFFile, TensorInfo
from umbel.gguf.types import BY_NAME, F16, Q8_0, DType

# Where a rule holds: in layer i of n, of a model with so many queries to a key and experts.
WHERE: dict[str, Callable[[int, int, int, int], bool]] = {
    "all": lambda i, n, gqa, experts: True,
    "first 2": lambda i, n, gqa, experts: i < 2,
    "first 4": lambda i, n, gqa, experts: i < 4,
    "first 16th": lambda i, n, gqa, experts: i < n // 16,
    "first 8th": lambda i, n, gqa, experts: i < n // 8,
    "last 8th": lambda i, n, gqa, experts: i >= 7 * n // 8,
    "each third": lambda i, n, gqa, experts: (i - n // 8) % 3 == 2,
    "gqa 4": lambda i, n, gqa, experts: gqa >= 4,
    "8 experts": lambda i, n, gqa, experts: experts == 8,
}
Rules: TypeAlias = Mapping[str, str]  # place: type; the first that holds wins


@attrs.frozen
class Mixture:
    """The type of most tensors, and the rules for those of some roles.

    `number` is that of `general.file_type`; `output` is for the output matrix, or for the
    embedding that serves as one.
    """

    number: int
    most: str
    output: str = "q6_k"
    attn_v: Rules = attrs.field(factory=dict)
    ffn_down: Rules = attrs.field(factory=dict)
    attn_output: Rules = attrs.field(factory=dict)


_MORE: Rules = dict.fromkeys(("first 8th", "last 8th", "each third"), "q6_k")
_FIRST: Rules = {"first 8th": "q5_k"}
_GQA, _EIGHT = {"gqa 4": "q5_k"}, {"8 experts": "q5_k"}
_Q3_V, _Q3_DOWN = {"first 2": "q5_k", "all": "q4_k"}, {"first 16th": "q5_k", "all": "q4_k"}

# llama.cpp stores the output matrix of q4_0 to q5_1 as q6_k: q8_0 is more exact, and needs no
# more than the `gguf` package.
MIXTURES = {
    "F32": Mixture(0, "f32", "f32"),
    "F16": Mixture(1, "f16", "f16"),
    "BF16": Mixture(32, "bf16", "bf16"),
    "Q8_0": Mixture(7, "q8_0", "q8_0"),
    "Q5_1": Mixture(9, "q5_1", "q8_0"),
    "Q5_0": Mixture(8, "q5_0", "q8_0"),
    "Q4_1": Mixture(3, "q4_1", "q8_0"),
    "Q4_0": Mixture(2, "q4_0", "q8_0"),
    "Q6_K": Mixture(18, "q6_k"),
    "Q5_K_M": Mixture(17, "q5_k", "q6_k", _MORE, _MORE),
    "Q5_K_S": Mixture(16, "q5_k"),
    "Q4_K_M": Mixture(15, "q4_k", "q6_k", _MORE, _MORE, _EIGHT),
    "Q4_K_S": Mixture(14, "q4_k", "q6_k", {"first 4": "q5_k"}, _FIRST, _EIGHT),
    "IQ4_NL": Mixture(25, "iq4_nl", "q6_k", _GQA, _FIRST, _EIGHT),
    "IQ4_XS": Mixture(30, "iq4_xs", "q6_k", _GQA, _FIRST, _EIGHT),
    "Q3_K_L": Mixture(
        *(13, "q3_k", "q6_k", {"all": "q5_k"}, {"all": "q5_k"}),
        {"8 experts": "q3_k", "all": "q5_k"},
    ),
    "Q3_K_M": Mixture(12, "q3_k", "q6_k", _Q3_V, _Q3_DOWN, {**_EIGHT, "all": "q4_k"}),
    "Q3_K_S": Mixture(11, "q3_k", "q6_k", {}, {}, _EIGHT),
    "IQ3_S": Mixture(26, "iq3_s", "q6_k", {"gqa 4": "q4_k"}, {}, _EIGHT),
    "Q2_K": Mixture(
        *(10, "q2_k", "q6_k", {"gqa 4": "q4_k", "all": "q3_k"}, {"all": "q3_k"}),
        {**_EIGHT, "all": "q3_k"},
    ),
}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}  # llama-quantize's

# What takes the place of a type whose blocks of 256 do not divide a row; after these f16.
FALLBACK = {
    "iq3_s": "iq4_nl",
    "iq4_xs": "iq4_nl",
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}

# Small, or sensitive: they keep the type that they have, as do all of one dimension.
KEPT = re.compile(
    r"""_norm\.weight | ffn_gate_inp\.weight | ffn_gate_tid2eid\.weight | altup | laurel
    | per_layer_model_proj | ^position_embd\.weight$ | ^token_types\.weight$ | ssm_conv1d
    | shortconv\.conv\.weight | indexer\.[kq]_proj\.weight | attn_rel_b\.weight
    | time_mix_(first|[wva][012]|g[12]|decay_w[12]|lerp_fused)\.weight
    | \.position_embd | sam\.(pos_embd|neck\.|net_) | \.rel_pos | \.patch_(embd|merger)
    | a\.rvq\.codebook | mm\.a\.code_embd""",
    re.VERBOSE,
)
ROLES = re.compile(r"(?:(attn_v|attn_qkv|attn_kv_b|attn_k|attn_output)\.weight)|(ffn_down)")
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
# Eight queries share a value in these, by layers: the small attn_v is worth more bits.
LARGE = {"llama": 80, "deci": 80, "qwen2": 80, "olmo": 80, "jais2": 68}


@attrs.frozen
class Choice:
    """The type that a tensor gets, and the one that was wanted, but does not fit its rows."""

    tensor: TensorInfo
    dtype: DType
    wanted: DType

    @property
    def is_fallback(self) -> bool:
        return self.dtype != self.wanted


def find(name: str) -> Mixture:
    """The mixture of this name, which may be in lower case."""
    own = ALIASES.get(name.upper(), name.upper())
    if own not in MIXTURES:
        msg = "there is no such type to quantise to"
        raise OptionError(msg, where="TYPE", expected=", ".join(MIXTURES), got=name)
    return MIXTURES[own]


def find_dtype(name: str) -> DType:
    """The type of a single tensor: one that a mixture has for most of its own."""
    names = {mixture.most for mixture in MIXTURES.values()}
    if name.lower() not in names:
        msg = "there is no such type of a tensor to quantise to"
        known = ", ".join(sorted(names))
        raise OptionError(msg, where="output_type", expected=known, got=name)
    return BY_NAME[name.lower()]


def choose(file: GGUFFile, mixture: Mixture, output: DType | None = None) -> list[Choice]:
    """What becomes of each tensor, in file order; `output` stands in for the mixture's own."""
    types = _Types(file, mixture, output)
    return [types.choice(tensor) for tensor in file.tensors.values()]


class _Types:
    """The mixture for one model."""

    def __init__(self, file: GGUFFile, mixture: Mixture, output: DType | None) -> None:
        self.mixture = mixture
        self.output = output or BY_NAME[mixture.output]
        self.tied = "output.weight" not in file.tensors
        arch = file.get("general.architecture", str)
        self.experts = _first(file, f"{arch}.expert_count", 0)
        heads = _first(file, f"{arch}.attention.head_count", 0)
        shared = _first(file, f"{arch}.attention.head_count_kv", heads)
        self.gqa = heads // shared if shared else 0
        layers = 1 + max((_layer(name) for name in file.tensors), default=0)
        self.layers = _first(file, f"{arch}.block_count", layers)
        self.large = LARGE.get(arch) == self.layers and not (arch == "llama" and self.gqa < 2)
        # The n-th attn_v is meant, not that of layer n: some layers have none.
        self.order: dict[str, list[str]] = {"attn_v": [], "ffn_down": []}
        for name in sorted(file.tensors, key=lambda name: (_layer(name), name)):
            tensor = file.tensors[name]
            if (role := _role(name)) in self.order and _may_change(tensor):
                self.order[role].append(name)

    def choice(self, tensor: TensorInfo) -> Choice:
        if not _may_change(tensor):
            return Choice(tensor, tensor.dtype, tensor.dtype)
        wanted = self._wanted(tensor.name)
        row = tensor.shape[-1]
        steps = (wanted, BY_NAME[FALLBACK.get(wanted.name, "f16")], F16)
        return Choice(tensor, next(t for t in steps if row % t.block == 0), wanted)

    def _wanted(self, name: str) -> DType:
        if name == "output.weight" or (self.tied and name in EMBEDDINGS):
            return self.output
        most, role = BY_NAME[self.mixture.most], _role(name)
        if name in EMBEDDINGS or not role or not most.quantised:
            return most
        if self.experts == 8 and role in ("attn_v", "attn_k"):  # small there, for their worth
            return Q8_0
        chosen = self._by_rules(name, role)
        if self.large and role == "attn_v" and chosen in ("q3_k", "q4_k"):
            chosen = "q5_k"
        return BY_NAME[chosen]

    def _by_rules(self, name: str, role: str) -> str:
        i, n = 0, self.layers
        if role == "ffn_down" and self.experts > 1:
            i = _layer(name)
        elif role in self.order:
            i = self.order[role].index(name)
            n = len(self.order[role]) if role == "attn_v" else n
        rules: Rules = getattr(self.mixture, role, {})
        holds = (t for at, t in rules.items() if WHERE[at](i, n, self.gqa, self.experts))
        return next(holds, self.mixture.most)


def _may_change(tensor: TensorInfo) -> bool:
    """Whether it is a matrix of weights, or several; integers are no weights."""
    name, shape = tensor.name, tensor.shape
    dims = len(shape) - next((i for i, n in enumerate(shape) if n != 1), len(shape))
    kept = dims < 2 or not name.endswith("weight") or KEPT.search(name)
    return not kept and not (tensor.dtype.numpy and tensor.dtype.numpy.kind == "i")


def _role(name: str) -> str:
    match = ROLES.search(name)
    role = (match[1] or match[2]) if match else ""
    return "attn_v" if role in ("attn_qkv", "attn_kv_b") else role


def _layer(name: str) -> int:
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def _first(file: GGUFFile, key: str, default: int) -> int:
    """A number, or the first layer's in an array of them."""
    value = file.metadata.get(key, default)
    value = value[0] if isinstance(value, list) and value else value
    return value if type(value) is int else default
