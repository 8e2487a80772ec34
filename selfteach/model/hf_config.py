"""Reading and writing config.json of the Hub's layout: the keys of each model family and their meaning.

A family is a table of aspects. An aspect owns some keys: it reads them into fields of `Config` and writes the fields
back as keys. A key that no aspect owns and that is not known to be neutral is refused by name. Absent
keys mean what transformers takes them to mean. What is written is understood by transformers 4 and 5 and by vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import BadCheckpoint, BadValue, describe, nearest
from .rope_config import ROPE_KEYS, UnsupportedConfig, local_rope, rope_to_json, scaling_of, theta_of
from .transformer import ACTIVATIONS, Config

Data = Mapping[str, Any]
REQUIRED: Any = object()  # a key without a default

# Keys that say nothing about the forward pass: identity, storage, special ids, generation, training and labels.
NEUTRAL_KEYS = """
architectures model_type torch_dtype dtype transformers_version transformers.js_config name_or_path is_llama_config
use_cache tokenizer_class cache_implementation bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id
decoder_start_token_id is_decoder is_encoder_decoder initializer_range attention_dropout pretraining_tp id2label
label2id num_labels problem_type output_attentions output_hidden_states return_dict return_dict_in_generate
temperature top_k top_p typical_p repetition_penalty length_penalty diversity_penalty num_beams num_beam_groups
num_return_sequences max_length min_length chunk_size_feed_forward task_specific_params finetuning_task license
"""
NEUTRAL = set(NEUTRAL_KEYS.split())


@dataclass(frozen=True)
class Aspect:
    """Some keys of a config.json: read into fields of Config, and written from it."""

    keys: tuple[str, ...]
    read: Callable[[Data], dict[str, Any]]
    write: Callable[[Config], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """A model_type: its class in transformers, the fields that all its models share, and its aspects."""

    architecture: str
    fixed: Mapping[str, Any]
    aspects: tuple[Aspect, ...]


# The most that a config.json may say: far more than any model has, and not enough to hang or to fill memory.
MOST = {"layer": 4096, "position": 1 << 21, "head": 1 << 16}
MOST_OTHERWISE = 1 << 26


def most_of(key: str) -> int:
    """The largest whole number that may stand under a key."""
    return next((most for word, most in MOST.items() if word in key), MOST_OTHERWISE)


def check_numbers(data: Data, file: Path | str) -> None:
    """Raise BadCheckpoint for a whole number, under whichever key of a config.json, that no model has."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            check_numbers(value, file)
        if not isinstance(value, int) or key.endswith("_id"):
            continue
        if not -1 <= value <= most_of(key) and key not in NEUTRAL:
            raise BadCheckpoint(f"{file}: {key} is {value}, and may be {most_of(key)} at most; mend the file")


def field_key(own: str, key: str, kind: type, default: Any = REQUIRED, null: Any = REQUIRED) -> Aspect:
    """An aspect of one key that is one field.

    default  the value where the key is absent; null: where it is null; either may be a function of the other keys
    """
    wanted = {int: "a whole number above 0", float: "a number above 0", bool: "true or false"}[kind]

    def read(data: Data) -> dict[str, Any]:
        value: Any = null if key in data and data[key] is None else data.get(key, default)
        value = value(data) if callable(value) else value
        if value is REQUIRED:
            raise UnsupportedConfig(f"it lacks {key}")
        if value is None:
            return {own: None}
        if (
            not isinstance(value, (int, float) if kind is float else kind)
            or isinstance(value, bool) != (kind is bool)
            or (kind is not bool and value <= 0)
        ):
            raise UnsupportedConfig(f"{key} is {repr(value)[:60]}, and must be {wanted}")
        if kind is not bool and not value <= most_of(key):  # NaN too
            raise UnsupportedConfig(f"{key} is {repr(value)[:60]}, and may be {most_of(key)} at most")
        return {own: kind(value)}

    return Aspect((key,), read, lambda c: {key: getattr(c, own)})


def _width_per_head(data: Data) -> int:
    return data["hidden_size"] // data["num_attention_heads"]


def _heads(data: Data) -> int:
    return data["num_attention_heads"]


def common_keys(kv_heads: Any = _heads, head_dim: Any = _width_per_head, tied: bool = False) -> tuple[Aspect, ...]:
    """The keys that every family has, with the family's defaults."""
    return (
        field_key("vocab", "vocab_size", int),
        field_key("width", "hidden_size", int),
        field_key("layers", "num_hidden_layers", int),
        field_key("heads", "num_attention_heads", int),
        field_key("hidden", "intermediate_size", int),
        field_key("max_length", "max_position_embeddings", int),
        field_key("kv_heads", "num_key_value_heads", int, kv_heads, _heads),
        field_key("head_dim", "head_dim", int, head_dim, _width_per_head),
        field_key("norm_eps", "rms_norm_eps", float, 1e-6),
        field_key("tied", "tie_word_embeddings", bool, tied, tied),
    )


def rope(theta: float = 10_000.0) -> Aspect:
    """One rotary table for all layers."""
    return Aspect(
        ROPE_KEYS,
        lambda d: {"rope_theta": theta_of(d, theta), "scaling": scaling_of(d)},
        lambda c: {"rope_theta": c.rope_theta, "rope_scaling": rope_to_json(c.scaling)},
    )


GEMMA3_ROPE = Aspect(
    (*ROPE_KEYS, "rope_local_base_freq"),
    local_rope,
    lambda c: {
        "rope_theta": c.rope_theta,
        "rope_scaling": rope_to_json(c.scaling),
        "rope_local_base_freq": c.local_theta,
    },
)


def activation_key() -> Aspect:
    """The activation, by transformers' name."""
    return Aspect(
        ("hidden_act",),
        lambda d: {"activation": _activation(d.get("hidden_act", "silu"))},
        lambda c: {"hidden_act": c.activation},
    )


def gemma_activation_key(legacy: bool) -> Aspect:
    """Gemma's activation; `legacy`: the first Gemma, whose files say gelu and mean its tanh form."""

    def read(data: Data) -> dict[str, Any]:
        name = data.get("hidden_activation") or (data.get("hidden_act") if legacy else None) or "gelu_pytorch_tanh"
        return {"activation": "gelu_pytorch_tanh" if legacy and name == "gelu" else _activation(name)}

    return Aspect(
        ("hidden_act", "hidden_activation"),
        read,
        lambda c: {"hidden_act": c.activation, "hidden_activation": c.activation},
    )


def _activation(name: Any) -> str:
    if name not in ACTIVATIONS:
        raise UnsupportedConfig(f"the activation {name!r} is not known; there are: {', '.join(ACTIVATIONS)}")
    return name


def uniform_window() -> Aspect:
    """Mistral's sliding window: all layers or none."""

    def read(data: Data) -> dict[str, Any]:
        window = data.get("sliding_window", 4096)
        return {"windows": (int(window),) * data["num_hidden_layers"] if window else ()}

    return Aspect(("sliding_window",), read, lambda c: {"sliding_window": max(c.windows, default=0) or None})


def layer_windows(rule: Callable[[Data, int], bool], window: int | None = 4096, switched: bool = False) -> Aspect:
    """Sliding windows by `layer_types`, or where that is absent by the family's rule.

    rule      (config, layer) -> True where the layer has a window
    switched  windows apply only where use_sliding_window is true
    """

    def read(data: Data) -> dict[str, Any]:
        wide = data.get("sliding_window", window)
        layers = range(data["num_hidden_layers"])
        kinds = data.get("layer_types") or ["sliding_attention" if rule(data, n) else "full_attention" for n in layers]
        if odd := set(kinds) - {"sliding_attention", "full_attention"}:
            raise UnsupportedConfig(
                f"layer_types holds {sorted(odd)[0]!r}; there are: full_attention, sliding_attention"
            )
        if len(kinds) != len(layers):
            raise UnsupportedConfig(f"layer_types names {len(kinds)} layers of {len(layers)}")
        if not wide or "sliding_attention" not in kinds or (switched and not data.get("use_sliding_window", False)):
            return {"windows": ()}
        return {"windows": tuple(int(wide) if kind == "sliding_attention" else 0 for kind in kinds)}

    def write(c: Config) -> dict[str, Any]:
        windows = c.windows or (0,) * c.layers
        kinds = ["sliding_attention" if w else "full_attention" for w in windows]
        first = next((n for n, w in enumerate(windows) if w), c.layers)
        out = {"sliding_window": max(windows) or (None if switched else window), "layer_types": kinds}
        return out | ({"use_sliding_window": any(windows), "max_window_layers": first} if switched else {})

    keys = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern")
    return Aspect(keys, read, write)


def _last_layers(data: Data, n: int) -> bool:
    return n >= data.get("max_window_layers", 28)


def _layers_with_rope(data: Data) -> list[int]:
    """SmolLM3's no_rope_layers, which holds 1 for a layer with rotary positions and 0 for one without."""
    every = data.get("no_rope_layer_interval", 4)
    return data.get("no_rope_layers") or [int((n + 1) % every != 0) for n in range(data["num_hidden_layers"])]


SMOLLM3_NO_ROPE = Aspect(
    ("no_rope_layers", "no_rope_layer_interval"),
    lambda d: {"unrotated": tuple(n for n in range(d["num_hidden_layers"]) if not _layers_with_rope(d)[n])},
    lambda c: {"no_rope_layers": [int(n not in c.unrotated) for n in range(c.layers)]},
)
SCORE_SCALE = Aspect(
    ("query_pre_attn_scalar",),
    lambda d: {"score_scale": d.get("query_pre_attn_scalar", 256) ** -0.5},
    lambda c: {"query_pre_attn_scalar": _whole((c.head_dim**-0.5 if c.score_scale is None else c.score_scale) ** -2)},
)


def _whole(x: float) -> float | int:
    return round(x) if abs(x - round(x)) < 1e-6 * x else x


ATTENTION_BIAS = field_key("attention_bias", "attention_bias", bool, False, False)
MLP_BIAS = field_key("mlp_bias", "mlp_bias", bool, False, False)
GEMMA = {"centred_norms": True, "scaled_embedding": True}


def _pattern(data: Data, n: int) -> bool:
    return bool((n + 1) % (data.get("sliding_window_pattern") or data.get("_sliding_window_pattern") or 6))


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", {}, (*common_keys(), rope(), activation_key(), ATTENTION_BIAS, MLP_BIAS)),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {"qk_norm": True},
        (*common_keys(32, 128), rope(), activation_key(), ATTENTION_BIAS, layer_windows(_last_layers, switched=True)),
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        {"qkv_bias": True},
        (*common_keys(32), rope(), activation_key(), layer_windows(_last_layers, switched=True)),
    ),
    "mistral": Family("MistralForCausalLM", {}, (*common_keys(8), rope(), activation_key(), uniform_window())),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        {},
        (
            *common_keys(4, tied=True),
            rope(2_000_000.0),
            activation_key(),
            ATTENTION_BIAS,
            MLP_BIAS,
            SMOLLM3_NO_ROPE,
            layer_windows(lambda d, n: not _layers_with_rope(d)[n], None, switched=True),
        ),
    ),
    "gemma": Family(
        "GemmaForCausalLM", GEMMA, (*common_keys(16, 256, True), rope(), gemma_activation_key(True), ATTENTION_BIAS)
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {**GEMMA, "sandwich": True},
        (
            *common_keys(4, 256, True),
            rope(),
            gemma_activation_key(False),
            ATTENTION_BIAS,
            SCORE_SCALE,
            field_key("score_cap", "attn_logit_softcapping", float, 50.0, None),
            field_key("logit_cap", "final_logit_softcapping", float, 30.0, None),
            layer_windows(lambda _, n: n % 2 == 0),
        ),
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        {**GEMMA, "sandwich": True, "qk_norm": True},
        (
            *common_keys(4, 256, True),
            GEMMA3_ROPE,
            gemma_activation_key(False),
            ATTENTION_BIAS,
            SCORE_SCALE,
            field_key("logit_cap", "final_logit_softcapping", float, None, None),
            layer_windows(_pattern),
        ),
    ),
}


def config_from_json(data: Data, file: Path | str) -> Config:
    """The model that a config.json describes.

    Raises BadCheckpoint for an unknown family, a missing key, or one that is not understood.
    """
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        hint = "; its text part alone (gemma3_text) can be" if kind == "gemma3" else f"; {nearest(str(kind), FAMILIES)}"
        raise BadCheckpoint(f"{file}: model_type {kind!r} cannot be loaded{hint} (families: {', '.join(FAMILIES)})")
    family = FAMILIES[kind]
    check_numbers(data, file)
    try:
        fields = {own: value for aspect in family.aspects for own, value in aspect.read(data).items()}
        config = Config(**family.fixed, **fields, kind=kind)
    except (UnsupportedConfig, BadValue) as error:
        raise BadCheckpoint(f"{file}: {error}; mend the file, or download it again") from None
    except Exception as error:  # a value of another kind shows wherever it is first used
        raise BadCheckpoint(f"{file}: not a model's shape ({describe(error, 160)}); download it again") from None
    known = NEUTRAL.union(*(aspect.keys for aspect in family.aspects))
    strange = sorted(k for k, v in data.items() if v and k not in known and not k.startswith(("_", "unsloth")))
    if strange:
        raise BadCheckpoint(
            f"{file}: {strange[0]} ({str(data[strange[0]])[:60]}) is not understood for model_type {kind}, and may "
            "change what the model computes; remove the key if it does not"
        )
    return config


def config_to_json(config: Config) -> dict[str, Any]:
    """The keys of config.json for a model: of its own family, or the first that can describe it.

    Raises BadValue where none can.
    """
    for kind in dict.fromkeys([config.kind, *FAMILIES]):
        if kind not in FAMILIES:
            continue
        family = FAMILIES[kind]
        out = {"architectures": [family.architecture], "model_type": kind}
        out |= {key: value for aspect in family.aspects for key, value in aspect.write(config).items()}
        try:
            back = config_from_json(out, "config.json")
            # A scale is written as its power of -2.
            is_same_scale = abs(back.attention_spec(0).scale / config.attention_spec(0).scale - 1) < 1e-12
            if is_same_scale and replace(back, kind=config.kind, score_scale=config.score_scale) == config:
                return out
        except BadCheckpoint:
            continue
    raise BadValue(f"model: no family of the Hub has all of this shape, so it cannot be saved: {config}")
