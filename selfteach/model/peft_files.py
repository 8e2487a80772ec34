"""Adapters in peft's files: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from ..core.errors import BadCheckpoint
from . import files
from .base import Model
from .lora import Adapter, LoraConfig, adaptable_linears, factors, lora_layers, short_targets
from .outside_files import check_finite, read_json

PREFIX = "base_model.model."  # before a tensor's name in peft's files
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def save(folder: Path, model: Model, base: str) -> None:
    """Write adapter_config.json and adapter_model.safetensors, for `peft.PeftModel.from_pretrained(model, folder)`."""
    lora = next(iter(lora_layers(model).values())).lora
    alpha = lora.effective_alpha
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "target_modules": list(lora.targets),
        "lora_dropout": lora.dropout,
        "use_rslora": lora.use_rslora,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
    }
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    files.write_tensors(folder / WEIGHTS, named_factors(model))


def named_factors(model: Model) -> dict[str, Tensor]:
    """The factors of a model's adapters under peft's names."""
    return {f"{PREFIX}{n}.weight": t for n, t in factors(model).items()}


def read_factors(folder: Path) -> dict[str, Tensor]:
    """The factors in a folder by module name. Raises BadCheckpoint for a tensor that is not a factor."""
    file, out = folder / WEIGHTS, {}
    for name, tensor in files.read_tensors(file).items():
        own = name.removeprefix(PREFIX).removesuffix(".weight")
        if not name.startswith(PREFIX) or not own.endswith((".lora_A", ".lora_B")):
            raise BadCheckpoint(
                f"{file}: tensor {name} is no factor of an adapter; only plain LoRA on linear layers can be read"
            )
        out[own] = check_finite(file, name, tensor)
    return out


# Keys of adapter_config.json that do not change what the adapter computes, given its tensors.
NEUTRAL_KEYS = """
peft_type task_type base_model_name_or_path revision auto_mapping inference_mode r lora_alpha target_modules
exclude_modules lora_dropout use_rslora init_lora_weights layers_to_transform layers_pattern peft_version
megatron_core ensure_weight_tying qalora_group_size
"""
NEUTRAL = set(NEUTRAL_KEYS.split())


def read(folder: Path, base: Model, dropout: float | None = None) -> Adapter:
    """An adapter in peft's layout, for a base; `dropout` None: that of its file.

    Raises BadCheckpoint naming the file, and the key or tensor that is not supported or does not fit the base.
    """
    file = folder / CONFIG
    try:
        config = read_json(file)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except FileNotFoundError:
        raise BadCheckpoint(f"{file}: missing; an adapter is a folder with {CONFIG} and {WEIGHTS}") from None
    except BadCheckpoint:
        raise
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise BadCheckpoint(f"{file}: not an adapter's configuration ({type(error).__name__}: {error})") from None
    strange = [k for k, v in config.items() if v and k not in NEUTRAL and (k, v) != ("bias", "none")]
    strange += ["peft_type"] * (config.get("peft_type") != "LORA")
    # Other initialisations than these change the base too.
    strange += ["init_lora_weights"] * (
        config.get("init_lora_weights", True) not in (True, False, None, "gaussian", "orthogonal")
    )
    if strange:
        raise BadCheckpoint(
            f"{file}: {strange[0]} ({str(config.get(strange[0]))[:60]}) is not understood; only plain LoRA can be read"
        )
    tensors = read_factors(folder)
    names = {n.rpartition(".")[0] for n in tensors}
    have = adaptable_linears(base)
    if foreign := sorted(names - have.keys()):
        raise BadCheckpoint(
            f"{folder / WEIGHTS}: tensor {PREFIX}{foreign[0]}.lora_A.weight belongs to a layer that the base does not "
            "have"
        )
    for name in sorted(names):
        out, width = have[name].weight.shape
        for leaf, shape in (("lora_A", (rank, width)), ("lora_B", (out, rank))):
            got = tuple(tensors[f"{name}.{leaf}"].shape) if f"{name}.{leaf}" in tensors else None
            if got != shape:
                problem = "is missing" if got is None else f"has shape {got}"
                raise BadCheckpoint(
                    f"{folder / WEIGHTS}: tensor {PREFIX}{name}.{leaf}.weight {problem}, the base and rank {rank} "
                    f"need {shape}"
                )
    if not names:
        raise BadCheckpoint(f"{folder / WEIGHTS}: holds no adapter")
    targets = short_targets([n for n in have if n in names], base)
    share = float(config.get("lora_dropout") or 0.0) if dropout is None else dropout
    return Adapter(LoraConfig(rank, alpha, targets, share, bool(config.get("use_rslora"))), tensors)


def check_base(file: Path, base: Model, root: str = "start") -> None:
    """Raises BadCheckpoint where a checkpoint's learner.json names another base of its adapters than these weights."""
    try:
        over = json.loads(file.read_text(encoding="utf-8"))["bases"].get(root)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(
            f"{file}: does not name the base of its adapters ({type(error).__name__}: {error})"
        ) from None
    if over != files.fingerprint(base.named_tensors()):
        raise BadCheckpoint(
            f"{file}: its adapters are for other weights than {root} has now; give the model that the run started from"
        )
