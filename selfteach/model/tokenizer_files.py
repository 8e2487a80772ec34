"""The files of a tokenizer in a folder of the Hub's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import BadCheckpoint
from . import outside_files

END = "<|end|>"  # the EOS token of tokenizers that are trained here


def read(folder: Path) -> tuple[Any, list[int], dict[str, Any] | None]:
    """(the tokenizer of the library `tokenizers`, EOS ids, content of tokenizer_config.json or None) of a folder.

    A chat template in a file of its own is put into the content. Raises BadCheckpoint naming the file that is missing
    or broken.
    """
    from tokenizers import Tokenizer as Inner

    file = folder / "tokenizer.json"
    if not outside_files.exists(file):
        hint = "transformers may make one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise BadCheckpoint(f"{file}: there is no tokenizer beside the weights; {hint}")
    try:
        outside_files.check_regular(file, outside_files.MOST_TOKENIZER)
        inner = Inner.from_file(str(file))
    except BadCheckpoint:
        raise
    except Exception as error:
        raise BadCheckpoint(
            f"{file}: not a tokenizer of this format ({' '.join(str(error).split())[:200]}); download it again"
        ) from error
    if inner.truncation or inner.padding:
        inner.no_truncation()
        inner.no_padding()
    config = _read_json(folder / "tokenizer_config.json")
    if config is not None and outside_files.exists(own := folder / "chat_template.jinja"):
        config["chat_template"] = outside_files.utf8_text(own)
    eos = _eos_token_ids(folder, inner, config or {})
    if not eos:
        raise BadCheckpoint(f"{folder}: no EOS token is known; generation_config.json should name it as eos_token_id")
    return inner, eos, config


def _eos_token_ids(folder: Path, inner: Any, config: Mapping[str, Any]) -> list[int]:
    """The EOS ids of generation_config.json, config.json and tokenizer_config.json, in this order.

    Raises BadCheckpoint for one that is no id or name of a token.
    """
    eos: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = (_read_json(folder / name) or {}).get("eos_token_id")
        for i in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < 1 << 32:
                raise BadCheckpoint(
                    f"{folder / name}: eos_token_id is {str(value)[:60]}, and must be an id, or a list of them; mend"
                    " the file"
                )
            eos += [i] if inner.id_to_token(i) is not None else []
    token = config.get("eos_token")
    token = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(token, str | None):
        raise BadCheckpoint(
            f"{folder / 'tokenizer_config.json'}: eos_token is {str(token)[:60]}, and must be the text of a token; mend"
            " the file"
        )
    named = [token, *([] if eos or token else [END])]
    return list(dict.fromkeys([*eos, *(i for t in named if t and (i := inner.token_to_id(t)) is not None)]))


def _read_json(file: Path) -> dict[str, Any] | None:
    return outside_files.read_json(file) if outside_files.exists(file) else None
