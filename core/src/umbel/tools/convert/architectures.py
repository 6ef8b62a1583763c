"""The classes of models that can be converted, and how."""

from collections.abc import Callable

import attrs

from umbel.errors import UnsupportedModelError
from umbel.tools.convert import hparams, names, tensors
from umbel.tools.convert.folder import Config

_COMPUTED = r".*rotary_emb\.inv_freq"  # tensors that follow from the configuration


@attrs.frozen
class Recipe:
    """How the models of a class of transformers become files of an architecture."""

    arch: str
    table: names.Table
    hparams: Callable[[Config], hparams.Keys]
    changes: tensors.Changes = attrs.Factory(dict)
    tied: bool = False  # the head is the embedding, where the configuration does not say
    prefix: str = ""  # that some folders put before all names
    ignored: str = _COMPUTED
    headless: str = ""  # what is left out, since the file is for hidden states


_LLAMA = Recipe("llama", names.LLAMA, hparams.llama, tensors.LLAMA)
_MIXTRAL = attrs.evolve(_LLAMA, table=names.MIXTRAL, hparams=hparams.mixtral)
_OLMO2 = Recipe("olmo2", names.OLMO2, hparams.olmo2)
_GPT2 = Recipe(
    "gpt2",
    names.GPT2,
    hparams.gpt2,
    tensors.GPT2,
    tied=True,
    prefix="transformer.",
    ignored=r"h\.\d+\.attn\.(masked_)?bias",
)
_MAMBA = Recipe("mamba", names.MAMBA, hparams.mamba, tensors.MAMBA, tied=True)
_BERT = Recipe(
    "bert",
    names.BERT,
    hparams.bert,
    tied=True,
    prefix="bert.",
    ignored=r"embeddings\.position_ids",
    headless=r"(pooler|cls)\..*",
)

RECIPES = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _MIXTRAL,
    "Qwen2ForCausalLM": Recipe("qwen2", names.LLAMA, hparams.qwen),
    "Qwen3ForCausalLM": Recipe("qwen3", names.QWEN3, hparams.qwen),
    "Qwen3MoeForCausalLM": Recipe("qwen3moe", names.QWEN3MOE, hparams.qwen3moe),
    "Gemma3ForCausalLM": Recipe(
        "gemma3", names.GEMMA3, hparams.gemma3, tensors.GEMMA3, tied=True
    ),
    "Phi3ForCausalLM": Recipe("phi3", names.PHI3, hparams.phi3),
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": _OLMO2,
    "GraniteForCausalLM": Recipe("granite", names.LLAMA, hparams.granite, tensors.LLAMA),
    "Lfm2ForCausalLM": Recipe("lfm2", names.LFM2, hparams.lfm2, tensors.LFM2, tied=True),
    "GPT2LMHeadModel": _GPT2,
    "MambaForCausalLM": _MAMBA,
    "FalconMambaForCausalLM": _MAMBA,
    "Mamba2ForCausalLM": Recipe("mamba2", names.MAMBA2, hparams.mamba2, tensors.MAMBA2),
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "BertForPreTraining": _BERT,
}


def recipe_of(config: Config) -> Recipe:
    """The recipe for the class that config.json names."""
    named = config.get("architectures", list, [])
    if len(named) == 1 and isinstance(named[0], str) and named[0] in RECIPES:
        if config.values.get("quantization_config") is not None:
            msg, do = "the model is quantised", "take the folder it was made from"
            raise UnsupportedModelError(msg, where=config.where, do=do)
        return RECIPES[named[0]]
    msg = "models of this class cannot be converted"
    got, known = ", ".join(map(str, named)) or "no architectures", ", ".join(RECIPES)
    raise UnsupportedModelError(msg, where=config.where, expected=f"one of {known}", got=got)
