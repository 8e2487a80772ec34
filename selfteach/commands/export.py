"""The command `selfteach export`: a run's model, or any other, as a file or folder that other programs read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..core.disk import atomic_folder
from ..core.errors import BadValue
from .arguments import Parser, add_typed
from .common import add_trust, print_json

if TYPE_CHECKING:
    from ..model.catalog import StartModel

ABOUT = """Write a run's model, or any that `train --model` takes, in a form that other programs read.

--gguf FILE    for llama.cpp and what is built on it: models of Llama's shape (ours, SmolLM2, Llama without scaled
               positions) with a byte-level BPE tokenizer. The file is read back and compared before it gets its
               name. Needs the extra selfteach[gguf].
--hub FOLDER   the Hub's layout, for transformers and vLLM: config.json, model.safetensors, tokenizer.json. A run has it
               already as RUN/last; here adapters are merged into the model.
"""
EXAMPLES = """examples:
  selfteach export runs/grpo-1 --gguf grpo-1.gguf
  selfteach export runs/grpo-1 --gguf grpo-1.q8.gguf --precision q8_0
  selfteach export runs/lora-1 --hub models/lora-1

what comes out: the file or folder, and its name and size on stdout; with --json {"gguf": FILE, "hub": FOLDER, "bytes":
...}. A file is replaced; a folder that is not empty is refused."""


def parser() -> Parser:
    """The options of `export`."""
    made = Parser("export", usage="selfteach export RUN_OR_MODEL [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("model", metavar="RUN_OR_MODEL", help="a run's folder, a model's folder or name, a .gguf file")
    made.add_argument("--gguf", metavar="FILE", help="write a GGUF file")
    made.add_argument("--hub", metavar="FOLDER", help="write a folder in the Hub's layout")
    kinds = Literal["f32", "f16", "bf16", "q8_0"]
    add_typed(made, "precision", kinds, "of the matrices in the GGUF file; f32 loses nothing", "f32")
    add_trust(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach export`; returns the exit code."""
    given = vars(parser().read(words))
    if "gguf" not in given and "hub" not in given:
        raise BadValue("selfteach export: says nothing to write; give --gguf FILE or --hub FOLDER")
    if "precision" in given and "gguf" not in given:
        raise BadValue("selfteach export: --precision goes with --gguf; leave it out")
    file, folder = Path(given.get("gguf", "")), Path(given.get("hub", ""))
    if "gguf" in given and (file.is_dir() or not file.name):
        raise BadValue(f"--gguf {given['gguf']}: is a folder; give a file")
    if "gguf" in given and not file.absolute().parent.is_dir():
        raise BadValue(f"--gguf {given['gguf']}: there is no folder {file.parent}; make it first")
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if "hub" in given and not (folder.name and is_free):
        raise BadValue(f"--hub {given['hub']}: is there already, and not an empty folder; give another")
    from ..serving.loading import start_of

    start, made = start_of(given["model"], bool(given.get("trust"))), dict[str, Path]()
    if "gguf" in given:
        from ..model.gguf_export import write_gguf

        write_gguf(file, start.model, start.tokenizer, given.get("precision", "f32"), Path(given["model"]).name)
        made["gguf"] = file
    if "hub" in given:
        _write_folder(folder, start)
        made["hub"] = folder
    size = sum(f.stat().st_size for at in made.values() for f in ([at] if at.is_file() else at.rglob("*")))
    if given.get("json"):
        print_json({**{name: str(at) for name, at in made.items()}, "bytes": size})
    else:
        print(f"{', '.join(map(str, made.values()))}: {size:,} bytes")
    return 0


def _write_folder(folder: Path, start: StartModel) -> None:
    from ..model import files

    with atomic_folder(folder) as temporary:
        files.save(temporary, start.model, start.tokenizer)
