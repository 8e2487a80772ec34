"""Live columns: quantities of a batch's rows under the weights of this moment, with a gradient where their groups move."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core.batch import Batch
from ..core.errors import BadValue, unknown
from ..core.registry import quantities
from ..model import lending
from ..model.base import Model
from ..model.quantities import HEADS, Name, Quantity, compute, logprobs, parse
from ..model.transformer import capped
from .groups import Groups, Seat
from .microbatch import layout, read, take, whole_rows
from .narrow import packed

CHUNK = 1 << 20  # logits made at a time: 4 MB of float32, which a processor's cache holds
ROWS = 64  # and rows of logits in multiples of this, for the same reason as microbatch.GRID
HELD = 1 << 25  # logits kept for the way back; above it they are made anew there


@dataclass(frozen=True)
class Wish:
    """A column asked of one member on some rows (i64[n], ascending)."""

    column: str
    quantity: Quantity
    member: str
    rows: np.ndarray

    @property
    def after(self) -> bool:
        return any(n.endswith("_after") for n in self.quantity.needs)


@dataclass
class Pass:
    """One forward of a trunk over some texts, and what is read from it, by the rows that are read together."""

    trunk: str
    view: str | None
    wishes: dict[bytes, list[Wish]] = field(default_factory=dict)


def asked(column: str, groups: Groups, batch: Batch) -> Name | None:
    """What a column asks of a forward pass; None for one that stands in the batch (recorded, assigned, or measured as the update began)."""
    return None if column.startswith(("prox_", "old_")) else parse(column, groups.seats, batch.prefixes)


def moves(name: Name, groups: Groups, batch: Batch, params: Collection[str]) -> bool:
    """True where a column is reached through a group that moves."""
    members = set(batch.member) if name.member is None else {name.member}
    needs = {n.removesuffix("_after") for n in quantities.get(name.quantity).needs}
    seats = [groups.seats[m] for m in members if m in groups.seats]
    return any(s.trunk in params or any(g in params for h, g in s.heads.items() if h in needs) for s in seats)


def compute_columns(groups: Groups, batch: Batch, want: Mapping[str, np.ndarray], partial: bool = False) -> dict[str, Tensor]:
    """Columns on some of their rows: {column: bool[N]} -> {column: [N] or [N, D]}, NaN on the other rows.

    `partial`: a row whose member lacks the head, or whose example lacks the view, is NaN instead of an error.
    Raises BadValue for rows whose sampling cannot be replayed, a missing view, an unknown member or head.
    """
    found: dict[str, list[tuple[np.ndarray, Tensor]]] = {column: [] for column in want}
    for one in _passes(groups, batch, want, partial):
        wishes = [w for some in one.wishes.values() for w in some]
        rows = np.unique(np.concatenate([w.rows for w in wishes]))
        after = any(w.after for w in wishes)
        trunk = groups.trunk(one.trunk)
        texts = read(batch, rows, one.view, after)
        longest = max(texts.ids, key=len)
        if len(longest) > trunk.c.max_length:
            raise BadValue(f"learner: a sequence of {len(longest)} tokens does not fit the model's context of {trunk.c.max_length}")
        lay = (layout if trunk.pluggable else whole_rows)(texts, groups.device, after)
        if lay.marks is not None:
            groups.drop(one.trunk, lay.attend, lay.marks)
        with torch.autocast(groups.device.split(":")[0], torch.bfloat16, enabled=groups.dtype == "bfloat16"):
            hidden = trunk(lay.ids, lay.attend, lay.positions).flatten(0, 1)
        for some in one.wishes.values():
            at = torch.from_numpy(np.searchsorted(rows, some[0].rows)).to(groups.device)
            before = take(hidden, lay.before[at])
            behind = take(hidden, lay.after[at]) if lay.after is not None else None
            for wish, values in zip(some, _values(groups, trunk, batch, some, before, behind), strict=True):
                found[wish.column].append((wish.rows, values))
    return {column: _assembled(parts, len(batch.place), groups) for column, parts in found.items()}


def _passes(groups: Groups, batch: Batch, want: Mapping[str, np.ndarray], partial: bool) -> list[Pass]:
    """The forwards that some columns need: one per trunk and view, however many members and heads read it."""
    out: dict[tuple[str, str | None], Pass] = {}
    seq = batch.get("seq")
    member = np.array(batch.member, object)
    for column, rows in want.items():
        name = parse(column, groups.seats, batch.prefixes)
        if name is None:
            raise unknown("quantity of a member here", column, [*quantities, *(f"{m}_logp" for m in groups.seats)])
        q = quantities.get(name.quantity)
        if q.scope == "group":
            raise BadValue(f"column {column}: it looks at a whole group and has no gradient; name it in an assigner, not in a term")
        if name.view is not None and partial:
            rows = rows & np.array([p is not None for p in batch.prefixes[name.view]], bool)[seq]
        able = 0
        for who in sorted(set(batch.member)) if name.member is None else [name.member]:
            mine = rows if name.member is not None else rows & (member == who)[seq]
            if who not in groups.seats:
                raise unknown("member of the cast", who, groups.seats)
            lacking = _lacking(q, groups.seats[who])
            if lacking and partial and name.member is None:
                continue
            if lacking and mine.any():
                heads = ", ".join(["vocab"] * groups.seats[who].vocab + list(groups.seats[who].heads)) or "none"
                raise BadValue(f"column {column}: member {who} has no {lacking} head, which {q.name} reads; its heads: {heads}")
            able += 1
            if mine.any():
                wish = Wish(column, q, who, np.flatnonzero(mine))
                _replayable(batch, wish)
                one = out.setdefault((groups.seats[who].trunk, name.view), Pass(groups.seats[who].trunk, name.view))
                one.wishes.setdefault(wish.rows.tobytes(), []).append(wish)
        if not able and len(batch.member):
            raise BadValue(f"column {column}: no member of this batch has the head that {q.name} reads")
    return list(out.values())


def _lacking(q: Quantity, seat: Seat) -> str:
    """The head that a quantity reads and a member has not; empty where it has all."""
    wanted = [n.removesuffix("_after") for n in q.needs]
    if q.vocabulary and not seat.vocab:
        return "vocab"
    return next((h for h in wanted if h in HEADS and h not in seat.heads), "")


def _replayable(batch: Batch, wish: Wish) -> None:
    if "logprobs" not in wish.quantity.needs:
        return
    bad = wish.rows[np.isnan(batch.get("temperature")[wish.rows])]
    if len(bad):
        name = batch.names[batch.get("seq")[bad[0]]]
        raise BadValue(
            f"sample {name}: its tokens were drawn from a cut or greedy distribution, so {wish.column} cannot be computed again; "
            "train with top_p=1, top_k=0 and temperature > 0"
        )


def _values(groups: Groups, trunk: Model, batch: Batch, wishes: list[Wish], before: Tensor, behind: Tensor | None) -> list[Tensor]:
    """What each wish asks of the same rows, from their hidden states [n, D]. Logits exist for a chunk of rows at a time."""
    rows = wishes[0].rows
    ids = torch.from_numpy(batch.ids[batch.place[rows]].astype(np.int64)).to(before.device)
    warm = np.nan_to_num(batch.get("temperature")[rows], nan=1.0)
    heat = None if (warm == 1).all() else torch.from_numpy(warm).to(before)
    wide = {w.quantity.name: w.quantity for w in wishes if w.quantity.vocabulary}
    given = {"hidden": before, "ids": ids} | ({} if behind is None else {"hidden_after": behind})
    result = _vocabulary(trunk, wide, before, ids, heat, groups.dtype == "bfloat16") if wide else {}
    out: list[Tensor] = []
    for wish in wishes:
        if wish.quantity.vocabulary:
            out.append(result[wish.quantity.name])
            continue
        own = dict(given)
        for need in wish.quantity.needs - own.keys():
            home = groups.seats[wish.member].heads.get(need.removesuffix("_after"))
            state = behind if need.endswith("_after") else before
            if home is not None and state is not None:
                own[need] = groups[home].heads[need.removesuffix("_after")](state).squeeze(-1)
        out.append(compute(wish.quantity.name, own))
    return out


def _vocabulary(
    trunk: Model, wide: Mapping[str, Quantity], hidden: Tensor, ids: Tensor, heat: Tensor | None, narrow: bool = False
) -> dict[str, Tensor]:
    """Quantities that read the logits, [n] each, from hidden states [n, D], by chunks of rows. Spare rows fill n up to the grid.

    `narrow`: log-probabilities and entropies by products in bf16, as the trunk's are, where a kernel does them.
    """
    plain = trunk.plain_head and trunk.c.logit_cap is None and wide.keys() <= {"logp", "entropy"}
    own = packed() if narrow and plain and lending.lent and hidden.device.type == "cpu" else None
    if own is not None and (both := own.logp(hidden, trunk.lm_head.weight, ids, heat)) is not None:
        return {n: v for n, v in zip(("logp", "entropy"), both, strict=True) if n in wide}
    size, spare = len(ids), -len(ids) % ROWS
    hidden, ids = F.pad(hidden, (0, 0, 0, spare)), F.pad(ids, (0, spare))
    heat = None if heat is None else F.pad(heat, (0, spare), value=1.0)
    return {n: v[:size] for n, v in _by_chunks(trunk, wide, hidden, ids, heat).items()}


def _by_chunks(trunk: Model, wide: Mapping[str, Quantity], hidden: Tensor, ids: Tensor, heat: Tensor | None) -> dict[str, Tensor]:
    weight = trunk.lm_head.weight
    step = chunk_rows(weight.shape[0])
    tracked = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    names = sorted(wide)
    if tracked and trunk.plain_head and wide.keys() <= {"logp", "entropy"}:
        both: tuple[Tensor, Tensor] = Chosen.apply(hidden, weight, ids, heat, trunk.c.logit_cap, step, "entropy" in wide)  # type: ignore[assignment]
        return {n: v for n, v in zip(("logp", "entropy"), both, strict=True) if n in wide}
    needs = set[str]().union(*(q.needs for q in wide.values()))

    def part(h: Tensor, i: Tensor, t: Tensor | float) -> tuple[Tensor, ...]:
        logits = trunk.logits(h)
        given = {"logits": logits, "ids": i, "hidden": h} | ({"logprobs": logprobs(logits, t)} if "logprobs" in needs else {})
        return tuple(compute(n, given) for n in names)

    anew = tracked and hidden.shape[0] * weight.shape[0] > HELD
    parts: list[tuple[Tensor, ...]] = []
    for a in range(0, hidden.shape[0], step):
        piece = hidden[a : a + step], ids[a : a + step], _cut(heat, a, step)
        parts.append(checkpoint(part, *piece, use_reentrant=False, preserve_rng_state=False) if anew else part(*piece))
    return {n: torch.cat([p[i] for p in parts]) for i, n in enumerate(names)}


def chunk_rows(vocabulary: int) -> int:
    """How many rows of logits are made at a time."""
    return max(ROWS, CHUNK // vocabulary // ROWS * ROWS)


def _cut(heat: Tensor | None, a: int, step: int) -> Tensor | float:
    """The temperatures of a chunk of rows; None: 1 everywhere."""
    return 1.0 if heat is None else heat[a : a + step]


class Chosen(torch.autograd.Function):
    """`logp` and `entropy` [n] of tokens from hidden states, as the quantities of these names give them; by chunks, there and back.

    With z = cap tanh(logits / cap) / t, l = log-softmax(z), p = e^l and H = -sum p l:
        d l_i / d z = [i] - p      d H / d z = -p (l + H)      d z / d logits = (1 - (z t / cap)^2) / t
    written in place: autograd over a gather from a log-softmax writes four matrices as wide as the vocabulary instead of one.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, ids: Tensor, heat: Tensor | None, cap: float | None, step: int, entropy: bool):  # type: ignore[override]
        keep = hidden.shape[0] * weight.shape[0] <= HELD
        ctx.heat, ctx.cap, ctx.step, ctx.kept = heat, cap, step, list[Tensor]()
        logp, spread, top = [], [], []
        for a in range(0, len(ids), step):
            wide, most = _logprobs(hidden[a : a + step], weight, _cut(heat, a, step), cap)
            logp.append(compute("logp", {"logprobs": wide, "ids": ids[a : a + step]}))
            spread.append(compute("entropy", {"logprobs": wide}) if entropy else wide.new_zeros(len(wide)))
            top.append(most)
            if keep:
                ctx.kept.append(wide)
        H = torch.cat(spread)
        ctx.save_for_backward(hidden, weight, ids, H if entropy else None, torch.cat(top))
        return torch.cat(logp), H

    @staticmethod
    def backward(ctx, to_logp: Tensor, to_entropy: Tensor):  # type: ignore[override]
        hidden, weight, ids, H, top = ctx.saved_tensors
        down = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        across = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for n, a in enumerate(range(0, len(ids), ctx.step)):
            rows = slice(a, a + ctx.step)
            h, t = hidden[rows], _cut(ctx.heat, a, ctx.step)
            wide = ctx.kept[n] if ctx.kept else _logprobs(h, weight, t, ctx.cap)[0]
            if ctx.kept:
                ctx.kept[n] = None
            g = (to_logp[rows] / t)[:, None]
            slope = None if ctx.cap is None else (wide + top[rows]).mul_(_wide(t) / ctx.cap).square_().neg_().add_(1)
            if H is None:
                wide = wide.exp_().mul_(-g)
            else:
                by = (wide + H[rows, None]).mul_((to_entropy[rows] / t)[:, None]).add_(g).neg_()
                wide = wide.exp_().mul_(by)
            wide.scatter_add_(-1, ids[rows, None], g.to(wide.dtype))
            wide = (wide if slope is None else wide.mul_(slope)).to(h.dtype)
            if down is not None:
                torch.mm(wide, weight, out=down[rows])
            if across is not None:
                across.addmm_(wide.T, h)
        return down, across, None, None, None, None, None


def _logprobs(hidden: Tensor, weight: Tensor, t: Tensor | float, cap: float | None) -> tuple[Tensor, Tensor]:
    """Log-probabilities [n, V] of hidden states, and what must be added to a row of them to have logits / t again [n, 1]."""
    logits = capped(hidden @ weight.T, cap)
    wide = logprobs(logits, t)
    return wide, logits[:, :1] / _wide(t) - wide[:, :1]


def _wide(t: Tensor | float) -> Tensor | float:
    return t[:, None] if isinstance(t, Tensor) else t


def _assembled(parts: list[tuple[np.ndarray, Tensor]], size: int, groups: Groups) -> Tensor:
    """Pieces of a column put in the order of the batch's rows; NaN where there is none."""
    if len(parts) == 1 and len(parts[0][0]) == size:
        return parts[0][1]
    if not parts:
        return torch.full((size,), torch.nan, dtype=groups.start.lm_head.weight.dtype, device=groups.device)
    rows = torch.from_numpy(np.concatenate([r for r, _ in parts])).to(groups.device)
    values = torch.cat([v for _, v in parts])
    return torch.full((size, *values.shape[1:]), torch.nan, dtype=values.dtype, device=values.device).index_copy(0, rows, values)
