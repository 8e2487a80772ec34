"""Micro-batches: which sequences go together, and how their tokens are laid out for one forward pass.

Tokens lie flat, so linear layers meet no padding; only attention is padded, at the right, where causality hides it. A context that
several sequences share (everything before their first learned token, in a group: the prompt) is laid out, and computed, once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadValue
from ..core.part import Unit
from ..model import lora
from ..model.transformer import Attend, Look, causal, masked
from .fused import kernels, pieces_of
from .products import apart

GRID = 64  # flat tokens come in multiples of this: oneDNN compiles and keeps a kernel for every size of product that it meets


@dataclass(frozen=True)
class Texts:
    """Texts as one member reads them: ids of each up to what is asked of it, where its learning begins, and its rows.

    ids    S arrays i32;  first  i64[S] position of the first learned token
    seq    i64[N] which of the S a row stands in;  at  i64[N] its position there
    """

    ids: list[np.ndarray]
    first: np.ndarray
    seq: np.ndarray
    at: np.ndarray


@dataclass(frozen=True)
class Layout:
    """Tokens of one forward pass: ids i64[1, F] flat, with their positions, or i64[S, L], a text in each row (positions None); where rows find
    the hidden states before and after them, i64[N] among all tokens (after: None where nobody asks); and, of flat ones, a number per token
    that its text determines, i64[F]."""

    ids: Tensor
    positions: Tensor | None
    before: Tensor
    after: Tensor | None
    attend: Attend
    marks: Tensor | None = None


def read(batch: Batch, rows: np.ndarray, view: str | None = None, after: bool = False) -> Texts:
    """The texts that some rows (i64[n], ascending) of a batch stand in, under a view; `after`: with the row's own token at the end.

    Raises BadValue for a sequence without that view.
    """
    texts, seq = np.unique(np.searchsorted(batch.texts, batch.place[rows], "right") - 1, return_inverse=True)
    begin = batch.texts[texts]
    at = batch.place[rows] - begin[seq]
    first = _ends(at, seq, len(texts), np.minimum)
    last = _ends(at, seq, len(texts), np.maximum)
    if view is None:
        ids = [batch.ids[a : a + n + after] for a, n in zip(begin, last, strict=True)]
        return Texts(ids, first, seq, at)
    seqs = np.searchsorted(batch.start, begin, "right") - 1
    if (later := seqs[begin > batch.start[seqs]]).size:
        raise BadValue(f"sample {batch.names[later[0]]}: its conversation was written anew on the way, so it has no one place for the view {view!r}")
    # A view goes on from the example's own first learned token, also where a filter has since dropped that row.
    graft = batch.columns["graft"].values[seqs].astype(np.int64) if "graft" in batch.columns else first
    ids, shift = [], np.zeros(len(seqs), np.int64)
    for i, s in enumerate(seqs):
        prefix = batch.prefixes[view][s]
        if prefix is None or not len(prefix):
            raise BadValue(f"sample {batch.names[s]}: it has no view {view!r}, under which a column is asked of it")
        ids.append(np.concatenate([prefix, batch.ids[batch.start[s] + graft[i] : batch.start[s] + last[i] + after]]))
        shift[i] = len(prefix) - graft[i]
    return Texts(ids, first + shift, seq, at + shift[seq])


def plan(batch: Batch, tokens: int, together: Unit = "seq", sharing: bool = True) -> list[np.ndarray] | None:
    """Cut a batch into micro-batches: arrays of sequence numbers, each of at most `tokens` tokens or one sequence.

    Sequences of one context stay together where they fit, and lengths are alike within a micro-batch. `together` is the unit that may
    not be cut (pair, group, episode, batch); None where one of them does not fit. `sharing`: a context of several is computed once.
    """
    size = batch.size("seq")
    seq = batch.get("seq")
    at = batch.place - batch.start[seq]
    first, last = _ends(at, seq, size, np.minimum), _ends(at, seq, size, np.maximum) + 1
    family = _families(batch.ids, batch.start, first)
    length = last.copy()
    for prefixes in batch.prefixes.values():
        length = np.maximum(length, last - first + [0 if p is None else len(p) for p in prefixes])
    own = np.maximum(length - first, 0)
    if not sharing:
        own, first = length, np.zeros_like(first)

    def fits(seqs: np.ndarray) -> bool:
        """Flat tokens within the budget, attention's padded ones within twice that: both bound memory."""
        shared = np.unique(family[seqs], return_index=True)[1]
        return bool(first[seqs][shared].sum() + own[seqs].sum() <= tokens and len(seqs) * own[seqs].max() <= 2 * tokens)

    whole = together not in ("token", "step", "seq")
    atom = _pieces(batch, together) if whole else family
    longest = _ends(length, atom, size, np.maximum)
    order = np.lexsort((np.arange(size), family, atom, longest[atom]))
    out: list[np.ndarray] = []
    held = order[:0]
    for piece in np.split(order, np.flatnonzero(np.diff(atom[order])) + 1) if size else []:
        small = len(piece) == 1 or fits(piece)
        if whole and not small:
            return None
        for part in [piece] if small else np.split(piece, len(piece)):
            joined = np.concatenate([held, part])
            if len(held) and not fits(joined):
                out.append(held)
                joined = part
            held = joined
    return [*out, held] if len(held) else out


def _ends(values: np.ndarray, where: np.ndarray, size: int, which: np.ufunc) -> np.ndarray:
    """The smallest or largest value at each of `size` places, i64."""
    out = np.full(size, np.iinfo(np.int64).max if which is np.minimum else -1, np.int64)
    which.at(out, where, values)
    return out


def _families(ids: np.ndarray, start: np.ndarray, first: np.ndarray) -> np.ndarray:
    """i64[S]: equal numbers for sequences whose ids before their first learned token are the same."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(ids[a : a + n].tobytes(), len(numbers)) for a, n in zip(start, first, strict=False)], np.int64)


def _pieces(batch: Batch, together: Unit) -> np.ndarray:
    """i64[S]: equal numbers for sequences that a unit ties together; pairs tie in chains."""
    size = batch.size("seq")
    if together != "pair":
        return np.zeros(size, np.int64) if together == "batch" else batch.get(together, "seq")
    label, win, lose = np.arange(size), batch.get("win"), batch.get("lose")
    while True:
        low = np.minimum(label[win], label[lose])
        if (label[win] == low).all() and (label[lose] == low).all():
            return label
        np.minimum.at(label, win, low)
        np.minimum.at(label, lose, low)


def layout(texts: Texts, device: str, after: bool = False) -> Layout:
    """Lay texts out flat: causal texts from position 0 (whole sequences, and contexts that several share), then the branches of those."""
    size = len(texts.ids)
    family = _families(np.concatenate(texts.ids), np.cumsum([0] + [len(t) for t in texts.ids]), texts.first)
    shared = np.bincount(family)[family] > 1
    bases: list[np.ndarray] = []
    base_of = np.zeros(size, np.int64)
    known: dict[int, int] = {}
    for s, text in enumerate(texts.ids):
        if not shared[s] or family[s] not in known:
            known[family[s]] = len(bases)
            bases.append(text[: texts.first[s]] if shared[s] else text)
        base_of[s] = known[family[s]]
    branch = np.array([s for s in range(size) if shared[s] and len(texts.ids[s]) > texts.first[s]], np.int64)
    pieces = bases + [texts.ids[s][texts.first[s] :] for s in branch]
    length = np.array([len(p) for p in pieces])
    begin = np.cumsum(length) - length
    offset = np.concatenate([np.zeros(len(bases), np.int64), texts.first[branch]])  # position of each piece's first token
    own = np.full(size, -1)
    own[branch] = len(bases) + np.arange(len(branch))

    def find(at: np.ndarray) -> np.ndarray:
        """Where in the flat tokens position `at` of each row's text is."""
        at_branch = shared[texts.seq] & (at >= texts.first[texts.seq])
        piece = np.where(at_branch, own[texts.seq], base_of[texts.seq])
        return begin[piece] + at - offset[piece]

    ids = np.concatenate(pieces).astype(np.int64)
    positions = np.concatenate([o + np.arange(n) for o, n in zip(offset, length, strict=True)])
    attend = attention(length[: len(bases)], length[len(bases) :], texts.first[branch], begin[base_of[branch]], device)
    spare = np.zeros(-len(ids) % GRID, np.int64)
    ids, positions = np.concatenate([ids, spare]), np.concatenate([positions, spare])
    before = np.concatenate([np.full(len(bases), -1), begin[base_of[branch]] + texts.first[branch] - 1])
    marks = np.concatenate([lora.marks(pieces, offset, before).astype(np.int64), spare])
    to = lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(device)  # noqa: E731
    return Layout(to(ids[None]), to(positions[None]), to(find(texts.at - 1)), to(find(texts.at)) if after else None, attend, to(marks))


def whole_rows(texts: Texts, device: str, after: bool = False) -> Layout:
    """Texts as rows, for a model whose attention cannot be handed in: each whole, whatever it shares, padded at the right."""
    longest = max(map(len, texts.ids))
    ids = np.zeros((len(texts.ids), longest), np.int64)
    for row, text in zip(ids, texts.ids, strict=True):
        row[: len(text)] = text
    to = lambda x: torch.from_numpy(x).to(device)  # noqa: E731
    at = texts.seq * longest + texts.at
    return Layout(to(ids), None, to(at - 1), to(at) if after else None, causal)


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows] along the first dimension. As an embedding, since its backward adds up repeated rows in a fixed order, and fast."""
    return F.embedding(rows, x.reshape(x.shape[0], -1)).view(*rows.shape, *x.shape[1:])


def attention(bases: np.ndarray, branches: np.ndarray, first: np.ndarray, context: np.ndarray, device: str) -> Attend:
    """Attention over flat tokens: causal texts of lengths `bases` [K], then branches of lengths [B], which begin at position `first` [B]
    of a context that stands at `context` [B] in the flat tokens."""
    fast, size = kernels(), int(bases.sum() + branches.sum())
    pieces = pieces_of(bases, branches, first, context)
    plain = functools.cache(lambda: padded(bases, branches, first, context, device))

    def attend(look: Look, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if fast and (out := fast.attend(look, pieces, q[0], k[0], v[0])) is not None:
            return out[None]
        with torch.autocast(q.device.type, enabled=False):
            # On a CPU torch's own attention in bf16 is worse, and several times slower.
            own = [x[0, :size].float() if x.dtype == torch.bfloat16 and x.device.type == "cpu" else x[0, :size] for x in (q, k, v)]
            out = plain()(look, *own)
        return F.pad(out, (0, 0, 0, 0, 0, q.shape[1] - size))[None]

    return attend


def padded(bases: np.ndarray, branches: np.ndarray, first: np.ndarray, context: np.ndarray, device: str) -> Attend:
    """The same by torch: q, k, v [F, H or KV, hd], texts and branches padded to their longest, where no query that counts looks."""
    to = lambda x: torch.from_numpy(x).to(device)  # noqa: E731
    pad, back = _padding(bases)
    split = int(bases.sum())
    even = bool((bases == bases[0]).all())
    pad_base, back_base = to(pad), to(back)
    if len(branches):
        pad, back = _padding(branches)
        pad_branch, back_branch = to(pad), to(back)
        begin = split + np.cumsum(branches) - branches
        key = np.arange(int((first + branches).max()))[None]
        inside = np.minimum(key - first[:, None], branches[:, None] - 1)
        keys = to(np.where(key < first[:, None], context[:, None] + key, begin[:, None] + inside))
        one = first[:1] if (first == first[0]).all() else first
        # Where each query stands; cells beyond a branch's end no further than the last key, so that they too see something.
        place = np.minimum(one[:, None, None] + np.arange(int(branches.max()))[None, :, None], key.max())
    masks: dict[int, Tensor] = {}

    def mask(window: int) -> Tensor:
        """What the branches' queries see [1 or B, 1, T, K], of `window` keys (0: all) up to their own."""
        if window not in masks:
            sees = (key[None] <= place) & ((place - key[None] < window) | (window == 0))
            masks[window] = torch.zeros(sees.shape, device=device).masked_fill_(~to(sees), -torch.inf)[:, None]
        return masks[window]

    def branched(look: Look, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return masked(look, q, k, v, mask(look.window).to(q.dtype)).transpose(1, 2)

    def flat(look: Look, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        whole = partial(causal, look)
        head = [x[:split] for x in (q, k, v)]
        if even:
            out = apart(whole, *(x.view(len(bases), -1, *x.shape[1:]) for x in head)).flatten(0, 1)
        else:
            out = take(apart(whole, *(take(x, pad_base) for x in head)).flatten(0, 1), back_base)
        if not len(branches):
            return out
        more = apart(partial(branched, look), take(q[split:], pad_branch), take(k, keys), take(v, keys))
        return torch.cat([out, take(more.flatten(0, 1), back_branch)])

    return flat


def _padding(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(i64[K, L] the flat place of each padded one, i64[F] the padded place of each flat one); padding repeats the last token."""
    begin = np.cumsum(lengths) - lengths
    step = np.arange(int(lengths.max()))[None]
    pad = begin[:, None] + np.minimum(step, lengths[:, None] - 1)
    return pad, np.flatnonzero((step < lengths[:, None]).ravel())
