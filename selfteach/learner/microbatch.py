"""Micro-batches: which sequences go together, and how their tokens are laid out for one forward pass.

Tokens are concatenated, so linear layers see no padding; only attention is padded, on the right, where causality hides
it. A prefix that several sequences share (everything before their first learned token; in a group, the prompt) is laid
out and computed once.
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
from ..core.blocks import Unit
from ..core.errors import BadValue
from ..kernels.fast_paths import default_matmul
from ..kernels.layer_ops import layer_ops, segments_of
from ..model import lora
from ..model.attention import AttentionFn, AttentionSpec, causal_attention, masked_attention

# flat tokens come in multiples of this: oneDNN compiles and keeps a kernel for every matmul size
TOKEN_MULTIPLE = 64


@dataclass(frozen=True)
class Texts:
    """Texts that a model reads, and the rows of a batch in them.

    ids    S arrays i32, each up to the last state that is needed
    first  i64[S]  position of the first learned token
    seq    i64[N]  the text of a row
    at     i64[N]  the position of a row in its text
    """

    ids: list[np.ndarray]
    first: np.ndarray
    seq: np.ndarray
    at: np.ndarray


@dataclass(frozen=True)
class Layout:
    """Tokens of one forward pass, flat or one text per row, and where the rows of a batch find their hidden states.

    ids           i64[1, F] flat, or i64[S, L] by texts
    positions     i64[1, F] of flat tokens; None by texts
    before        i64[N]  index, among all tokens, of the state before a row's token
    after         i64[N]  index of the state after it; None where it is not needed
    attend        the attention over this layout
    token_hashes  i64[F]  of flat tokens: a hash of the text up to each, for dropout
    """

    ids: Tensor
    positions: Tensor | None
    before: Tensor
    after: Tensor | None
    attend: AttentionFn
    token_hashes: Tensor | None = None


def texts_of(batch: Batch, rows: np.ndarray, view: str | None = None, after: bool = False) -> Texts:
    """The texts that hold some rows (i64[n], ascending) of a batch, under a view.

    after: with the row's own token at the end, for the state after it.
    Raises BadValue for a sequence without that view.
    """
    texts, seq = np.unique(np.searchsorted(batch.texts, batch.place[rows], "right") - 1, return_inverse=True)
    begin = batch.texts[texts]
    at = batch.place[rows] - begin[seq]
    first = _extremes(at, seq, len(texts), np.minimum)
    last = _extremes(at, seq, len(texts), np.maximum)
    if view is None:
        ids = [batch.ids[a : a + n + after] for a, n in zip(begin, last, strict=True)]
        return Texts(ids, first, seq, at)
    seqs = np.searchsorted(batch.start, begin, "right") - 1
    if (later := seqs[begin > batch.start[seqs]]).size:
        raise BadValue(
            f"sample {batch.names[later[0]]}: its conversation was re-rendered between turns, so the view {view!r} "
            "has no single place in it"
        )
    # A view continues with the example's own first learned token, also where a filter has since dropped that row.
    insertion_point = (
        batch.columns["insertion_point"].values[seqs].astype(np.int64) if "insertion_point" in batch.columns else first
    )
    ids, shift = [], np.zeros(len(seqs), np.int64)
    for i, s in enumerate(seqs):
        prefix = batch.prefixes[view][s]
        if prefix is None or not len(prefix):
            raise BadValue(f"sample {batch.names[s]}: it has no view {view!r}, which a column names")
        ids.append(
            np.concatenate([prefix, batch.ids[batch.start[s] + insertion_point[i] : batch.start[s] + last[i] + after]])
        )
        shift[i] = len(prefix) - insertion_point[i]
    return Texts(ids, first + shift, seq, at + shift[seq])


def plan_micro_batches(
    batch: Batch, tokens: int, unit: Unit = "seq", shares_prefixes: bool = True
) -> list[np.ndarray] | None:
    """Micro-batches of a batch: arrays of sequence indices, each of at most `tokens` tokens or one sequence.

    Sequences of one prefix stay together where they fit, and lengths are similar within a micro-batch. unit: what may
    not be split (pair, group, episode, batch); None is returned where one of these does not fit. shares_prefixes: a
    prefix of several sequences is computed once.
    """
    size = batch.size("seq")
    family, first, own, length = _token_counts(batch, shares_prefixes)

    def fits(seqs: np.ndarray) -> bool:
        """Whether flat tokens are within the budget and attention's padded ones within twice that: both take memory."""
        shared = np.unique(family[seqs], return_index=True)[1]
        return bool(first[seqs][shared].sum() + own[seqs].sum() <= tokens and len(seqs) * own[seqs].max() <= 2 * tokens)

    whole = unit not in ("token", "step", "seq")
    atom = _unit_of_sequence(batch, unit) if whole else family
    longest = _extremes(length, atom, size, np.maximum)
    order = np.lexsort((np.arange(size), family, atom, longest[atom]))
    if size and fits(order):  # then any part of it does
        return [order]
    out: list[np.ndarray] = []
    current = order[:0]
    for piece in np.split(order, np.flatnonzero(np.diff(atom[order])) + 1) if size else []:
        small = len(piece) == 1 or fits(piece)
        if whole and not small:
            return None
        for part in [piece] if small else np.split(piece, len(piece)):
            joined = np.concatenate([current, part])
            if len(current) and not fits(joined):
                out.append(current)
                joined = part
            current = joined
    return [*out, current] if len(current) else out


def split_by_tokens(
    batch: Batch, parts: int, unit: Unit = "seq", shares_prefixes: bool = True
) -> list[np.ndarray] | None:
    """The sequences of a batch in `parts` shares of about as many tokens, greedily, the largest first.

    What a `unit` holds together is not split, nor are sequences of one prefix unless they are more than a share.
    Returns arrays of sequence indices; None where `unit` is coarser than a sequence and there are fewer than shares.
    """
    size = batch.size("seq")
    family, first, own, _ = _token_counts(batch, shares_prefixes)
    whole = unit not in ("token", "step", "seq")
    atom = _unit_of_sequence(batch, unit) if whole else family.copy()
    if whole and len(np.unique(atom)) < parts:
        return None
    cost = np.bincount(atom, own, minlength=size)
    shared = np.unique(family, return_index=True)[1] if size else family
    cost += np.bincount(atom[shared], first[shared], minlength=size)
    if not whole:
        large = cost[atom] > cost.sum() / parts
        atom = np.where(large, size + np.arange(size), atom)
        cost = np.concatenate([cost, own + first])
    order = sorted(np.unique(atom).tolist(), key=lambda a: (-cost[a], a))
    held, share_of = np.zeros(parts), dict[int, int]()
    for a in order:
        share_of[a] = int(held.argmin())
        held[share_of[a]] += cost[a]
    share = np.array([share_of[a] for a in atom.tolist()], np.int64)
    return [np.flatnonzero(share == n) for n in range(parts)]


def _token_counts(batch: Batch, shares_prefixes: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each sequence, i64[S]: its family, tokens of the prefix that it shares, tokens of its own, tokens in all."""
    size = batch.size("seq")
    seq = batch.get("seq")
    at = batch.place - batch.start[seq]
    first, last = _extremes(at, seq, size, np.minimum), _extremes(at, seq, size, np.maximum) + 1
    family = _families(batch.ids, batch.start, first)
    length = last.copy()
    for prefixes in batch.prefixes.values():
        length = np.maximum(length, last - first + [0 if p is None else len(p) for p in prefixes])
    own = np.maximum(length - first, 0)
    return (family, first, own, length) if shares_prefixes else (family, np.zeros_like(first), length, length)


def _extremes(values: np.ndarray, where: np.ndarray, size: int, which: np.ufunc) -> np.ndarray:
    """The smallest or largest value (np.minimum, np.maximum) at each of `size` indices: i64[size]."""
    out = np.full(size, np.iinfo(np.int64).max if which is np.minimum else -1, np.int64)
    which.at(out, where, values)
    return out


def _families(ids: np.ndarray, start: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Family of each sequence, i64[S]: equal where the ids before the first learned token are equal."""
    numbers: dict[bytes, int] = {}
    return np.array(
        [numbers.setdefault(ids[a : a + n].tobytes(), len(numbers)) for a, n in zip(start, first, strict=False)],
        np.int64,
    )


def _unit_of_sequence(batch: Batch, unit: Unit) -> np.ndarray:
    """Unit of each sequence, i64[S]: equal for those that must stay together; pairs are chained."""
    size = batch.size("seq")
    if unit != "pair":
        return np.zeros(size, np.int64) if unit == "batch" else batch.get(unit, "seq")
    label, win, lose = np.arange(size), batch.get("win"), batch.get("lose")
    while True:
        low = np.minimum(label[win], label[lose])
        if (label[win] == low).all() and (label[lose] == low).all():
            return label
        np.minimum.at(label, win, low)
        np.minimum.at(label, lose, low)


def flat_layout(texts: Texts, device: str, after: bool = False) -> Layout:
    """The flat layout of texts: bases (whole texts and shared prefixes, from position 0), then branches.

    A branch is the rest of a text after its shared prefix.
    """
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
    offset = np.concatenate(
        [np.zeros(len(bases), np.int64), texts.first[branch]]
    )  # position of each piece's first token
    own = np.full(size, -1)
    own[branch] = len(bases) + np.arange(len(branch))

    def flat_index(at: np.ndarray) -> np.ndarray:
        """The index among flat tokens of position `at` of each row's text."""
        at_branch = shared[texts.seq] & (at >= texts.first[texts.seq])
        piece = np.where(at_branch, own[texts.seq], base_of[texts.seq])
        return begin[piece] + at - offset[piece]

    ids = np.concatenate(pieces).astype(np.int64)
    positions = np.concatenate([o + np.arange(n) for o, n in zip(offset, length, strict=True)])
    attend = flat_attention(
        length[: len(bases)], length[len(bases) :], texts.first[branch], begin[base_of[branch]], device
    )
    padding = np.zeros(-len(ids) % TOKEN_MULTIPLE, np.int64)
    ids, positions = np.concatenate([ids, padding]), np.concatenate([positions, padding])
    before = np.concatenate([np.full(len(bases), -1), begin[base_of[branch]] + texts.first[branch] - 1])
    token_hashes = np.concatenate([lora.token_hashes(pieces, offset, before).astype(np.int64), padding])
    to = lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(device)  # noqa: E731
    return Layout(
        to(ids[None]),
        to(positions[None]),
        to(flat_index(texts.at - 1)),
        to(flat_index(texts.at)) if after else None,
        attend,
        to(token_hashes),
    )


def padded_layout(texts: Texts, device: str, after: bool = False) -> Layout:
    """The layout of one text per row, padded on the right, for a model without custom attention."""
    longest = max(map(len, texts.ids))
    ids = np.zeros((len(texts.ids), longest), np.int64)
    for row, text in zip(ids, texts.ids, strict=True):
        row[: len(text)] = text
    to = lambda x: torch.from_numpy(x).to(device)  # noqa: E731
    at = texts.seq * longest + texts.at
    return Layout(to(ids), None, to(at - 1), to(at) if after else None, causal_attention)


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """The rows x[rows] along the first dimension.

    By an embedding, whose backward sums repeated rows in a fixed order, and fast.
    """
    return F.embedding(rows, x.reshape(x.shape[0], -1)).view(*rows.shape, *x.shape[1:])


def flat_attention(
    bases: np.ndarray, branches: np.ndarray, first: np.ndarray, context: np.ndarray, device: str
) -> AttentionFn:
    """Attention over flat tokens: by a kernel where there is one, else padded.

    bases    i64[K]  lengths of the causal texts, which come first
    branches i64[B]  lengths of the branches after them
    first    i64[B]  position of a branch's first token
    context  i64[B]  index, among flat tokens, of the base that a branch continues
    """
    kernels, size = layer_ops(), int(bases.sum() + branches.sum())
    segments = segments_of(bases, branches, first, context)
    plain = functools.cache(lambda: padded_attention(bases, branches, first, context, device))

    def attend(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kernels and spec.cap is None:
            out = kernels.attend(segments, q[0], k[0], v[0], spec.scale, spec.window)
            if out is not None:
                return out[None]
        with torch.autocast(q.device.type, enabled=False):
            # On a CPU torch's own attention in bf16 is worse, and several times slower.
            own = [
                x[0, :size].float() if x.dtype == torch.bfloat16 and x.device.type == "cpu" else x[0, :size]
                for x in (q, k, v)
            ]
            out = plain()(spec, *own)
        return F.pad(out, (0, 0, 0, 0, 0, q.shape[1] - size))[None]

    return attend


def padded_attention(
    bases: np.ndarray, branches: np.ndarray, first: np.ndarray, context: np.ndarray, device: str
) -> AttentionFn:
    """As `flat_attention`, by torch: q, k, v [F, H or KV, hd]; bases and branches are padded to their longest.

    Padding comes after each text, where causality hides it.
    """
    pad, back = (torch.from_numpy(x).to(device) for x in _padding(bases))
    split = int(bases.sum())
    even = bool((bases == bases[0]).all())
    of_branches = _branch_attention(split, branches, first, context, device) if len(branches) else None

    def attend(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        causal = partial(causal_attention, spec)
        of_bases = [x[:split] for x in (q, k, v)]
        if even:
            out = default_matmul(causal, *(x.view(len(bases), -1, *x.shape[1:]) for x in of_bases)).flatten(0, 1)
        else:
            out = take_rows(default_matmul(causal, *(take_rows(x, pad) for x in of_bases)).flatten(0, 1), back)
        return out if of_branches is None else torch.cat([out, of_branches(spec, q[split:], k, v)])

    return attend


def _branch_attention(
    split: int, branches: np.ndarray, first: np.ndarray, context: np.ndarray, device: str
) -> AttentionFn:
    """Attention of the branches' queries [F - split, H, hd] to all flat keys and values [F, KV, hd]."""
    to = lambda x: torch.from_numpy(x).to(device)  # noqa: E731
    pad, back = (to(x) for x in _padding(branches))
    begin = split + np.cumsum(branches) - branches
    key = np.arange(int((first + branches).max()))[None]
    inside = np.minimum(key - first[:, None], branches[:, None] - 1)
    keys = to(np.where(key < first[:, None], context[:, None] + key, begin[:, None] + inside))
    one = first[:1] if (first == first[0]).all() else first
    # Positions of queries; cells beyond a branch's end get at most the last key's, so that they attend to some key.
    place = np.minimum(one[:, None, None] + np.arange(int(branches.max()))[None, :, None], key.max())
    masks: dict[int, Tensor] = {}

    def mask(window: int) -> Tensor:
        """The mask [1 or B, 1, T, K] of the branches' queries: `window` keys (0: all) up to their own."""
        if window not in masks:
            sees = (key[None] <= place) & ((place - key[None] < window) | (window == 0))
            masks[window] = torch.zeros(sees.shape, device=device).masked_fill_(~to(sees), -torch.inf)[:, None]
        return masks[window]

    def padded(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return masked_attention(spec, q, k, v, mask(spec.window).to(q.dtype)).transpose(1, 2)

    def attend(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = default_matmul(partial(padded, spec), take_rows(q, pad), take_rows(k, keys), take_rows(v, keys))
        return take_rows(out.flatten(0, 1), back)

    return attend


def _padding(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of texts padded to the longest: (flat index of each cell i64[K, L], cell of each flat token i64[F]).

    Padding repeats the last token.
    """
    begin = np.cumsum(lengths) - lengths
    step = np.arange(int(lengths.max()))[None]
    pad = begin[:, None] + np.minimum(step, lengths[:, None] - 1)
    return pad, np.flatnonzero((step < lengths[:, None]).ravel())
