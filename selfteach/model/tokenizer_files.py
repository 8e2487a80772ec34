"""The files of a tokenizer in a folder of the Hub's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import BadCheckpoint

END = "<|end|>"  # the EOS token of tokenizers that are trained here


def read(folder: Path) -> tuple[Any, list[int], dict[str, Any] | None]:
    """(the tokenizer of the library `tokenizers`, EOS ids, content of tokenizer_config.json or None) of a folder.

    A chat template in a file of its own is put into the content. Raises BadCheckpoint naming the file that is missing
    or broken.
    """
    from tokenizers import Tokenizer as Inner

    file = folder / "tokenizer.json"
    if not file.is_file():
        hint = "transformers may make one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise BadCheckpoint(f"{file}: there is no tokenizer beside the weights; {hint}")
    try:
        inner = Inner.from_file(str(file))
    except Exception as error:
        raise BadCheckpoint(f"{file}: not a tokenizer of this format ({error})") from error
    if inner.truncation or inner.padding:
        inner.no_truncation()
        inner.no_padding()
    config = _read_json(folder / "tokenizer_config.json")
    if config is not None and (own := folder / "chat_template.jinja").is_file():
        config["chat_template"] = own.read_text()
    eos = _eos_token_ids(folder, inner, config or {})
    if not eos:
        raise BadCheckpoint(f"{folder}: no EOS token is known; generation_config.json should name it as eos_token_id")
    return inner, eos, config


def _eos_token_ids(folder: Path, inner: Any, config: Mapping[str, Any]) -> list[int]:
    """The EOS ids of generation_config.json, config.json and tokenizer_config.json, in this order."""
    eos: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = (_read_json(folder / name) or {}).get("eos_token_id")
        eos += [
            i
            for i in (value if isinstance(value, list) else [value])
            if isinstance(i, int) and inner.id_to_token(i) is not None
        ]
    token = config.get("eos_token")
    named = [token.get("content") if isinstance(token, Mapping) else token, *([] if eos or token else [END])]
    return list(dict.fromkeys([*eos, *(i for t in named if t and (i := inner.token_to_id(t)) is not None)]))


def _read_json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadCheckpoint(f"{file}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{file}: should hold an object")
    return data
