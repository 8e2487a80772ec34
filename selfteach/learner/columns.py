"""Live columns: model quantities of a batch's rows under the current weights, with a gradient to trainable groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core.batch import Batch
from ..core.errors import BadValue, unknown
from ..core.quantity import HEADS, ColumnName, Quantity, parse
from ..core.registry import quantities
from ..kernels import overrides
from ..kernels.matmul_bf16 import bf16_matmul
from ..model.attention import causal_attention, soft_cap
from ..model.base import Model
from ..model.quantities import compute, logprobs
from ..model.residual import kept
from .microbatch import Layout, flat_layout, padded_layout, take_rows, texts_of
from .param_groups import ParamGroups, ResolvedModel
from .rounds import Pass, alone, failed

CHUNK_LOGITS = 1 << 20  # logits computed at a time: 4 MB of float32, which a CPU's cache holds
ROW_MULTIPLE = 64  # rows of logits come in multiples of this, for the same reason as microbatch.TOKEN_MULTIPLE
MAX_KEPT_LOGITS = 1 << 25  # logits kept for the backward; more than that are computed again there


@dataclass(frozen=True)
class ColumnRequest:
    """A column to compute with one model, on some rows (i64[n], ascending)."""

    column: str
    quantity: Quantity
    model_role: str
    rows: np.ndarray

    @property
    def after(self) -> bool:
        """Whether it needs hidden states after the rows' tokens."""
        return any(n.endswith("_after") for n in self.quantity.needs)

    @property
    def reads_layers(self) -> bool:
        """Whether it reads the residual stream after each layer."""
        return "residuals" in self.quantity.needs


@dataclass
class ForwardPass:
    """One forward pass of a trunk over some texts, and the columns requested of it, by the rows (bytes) they read."""

    trunk: str
    view: str | None
    requests: dict[bytes, list[ColumnRequest]] = field(default_factory=dict)


def live_column_name(column: str, groups: ParamGroups, batch: Batch) -> ColumnName | None:
    """The parsed name of a column that a forward pass gives; None for a column of the batch itself.

    Columns of the batch are those recorded or assigned, and those computed as the update began (prox_, old_).
    """
    return None if column.startswith(("prox_", "old_")) else parse(column, groups.models, batch.prefixes)


def is_trainable(name: ColumnName, groups: ParamGroups, batch: Batch, params: Collection[str]) -> bool:
    """Whether a column depends on one of the parameter groups `params`."""
    model_roles = set(batch.model_role) if name.model_role is None else {name.model_role}
    needs = {n.removesuffix("_after") for n in quantities.get(name.quantity).needs}
    models = [groups.models[m] for m in model_roles if m in groups.models]
    return any(s.trunk in params or any(g in params for h, g in s.heads.items() if h in needs) for s in models)


def compute_columns(
    groups: ParamGroups, batch: Batch, want: Mapping[str, np.ndarray], partial: bool = False
) -> dict[str, Tensor]:
    """Columns on some of their rows: {column: bool[N]} -> {column: [N] or [N, D]}, NaN on the other rows.

    partial: a row whose model lacks the head, or whose example lacks the view, is NaN instead of an error.
    Raises BadValue for rows whose sampling cannot be replayed and a missing view, head or model.
    """
    parts_of: dict[str, list[tuple[np.ndarray, Tensor]]] = {column: [] for column in want}
    passes = {(p.trunk, p.view): p for p in _passes(groups, batch, want, partial)}
    for key in passes if groups.round is None else groups.round.passes:
        if (forward_pass := passes.get(key)) is None:
            _anchor(groups, _empty_pass(groups, key[0]))
            continue
        trunk = groups.trunk(forward_pass.trunk)
        found = _layout_alone(groups, trunk, batch, forward_pass)
        if found is None:
            _anchor(groups, _empty_pass(groups, key[0]))
            continue
        rows, layout = found
        if layout.token_hashes is not None:
            groups.set_dropout(forward_pass.trunk, layout.attend, layout.token_hashes)
        reads_layers = any(r.reads_layers for same_rows in forward_pass.requests.values() for r in same_rows)
        with (
            torch.autocast(groups.device.split(":")[0], torch.bfloat16, enabled=groups.dtype == "bfloat16"),
            kept(trunk) if reads_layers else nullcontext(list[Tensor]()) as layers,
        ):
            hidden = trunk(layout.ids, layout.attend, layout.positions).flatten(0, 1)
        _anchor(groups, hidden)
        with alone(groups):
            for same_rows in forward_pass.requests.values():
                at = torch.from_numpy(np.searchsorted(rows, same_rows[0].rows)).to(groups.device)
                before_states = take_rows(hidden, layout.before[at])
                after_states = take_rows(hidden, layout.after[at]) if layout.after is not None else None
                states = [take_rows(x.flatten(0, 1), layout.before[at]) for x in layers]
                for request, values in zip(
                    same_rows,
                    _values(groups, trunk, batch, same_rows, before_states, after_states, states),
                    strict=True,
                ):
                    parts_of[request.column].append((request.rows, values))
    if failed(groups):
        return {}
    return {column: _assemble(parts, len(batch.place), groups) for column, parts in parts_of.items()}


def _layout_alone(
    groups: ParamGroups, trunk: Model, batch: Batch, forward_pass: ForwardPass
) -> tuple[np.ndarray, Layout] | None:
    """As `_layout`; None where it fails on this rank alone."""
    with alone(groups):
        return _layout(groups, trunk, batch, forward_pass)
    return None


def _layout(groups: ParamGroups, trunk: Model, batch: Batch, forward_pass: ForwardPass) -> tuple[np.ndarray, Layout]:
    """The rows that a forward pass is for, i64[n], and the layout of their texts.

    Raises BadValue for a text that does not fit the model's context.
    """
    requests = [r for same_rows in forward_pass.requests.values() for r in same_rows]
    rows = np.unique(np.concatenate([r.rows for r in requests]))
    after = any(r.after for r in requests)
    texts = texts_of(batch, rows, forward_pass.view, after)
    longest = max(texts.ids, key=len)
    if len(longest) > trunk.config.max_length:
        raise BadValue(
            f"learner: a sequence of {len(longest)} tokens does not fit the model's context of "
            f"{trunk.config.max_length}"
        )
    return rows, (flat_layout if trunk.supports_custom_attention else padded_layout)(texts, groups.device, after)


def passes_of(groups: ParamGroups, batch: Batch, want: Mapping[str, np.ndarray], partial: bool = False) -> list[Pass]:
    """The forward passes that columns need, by trunk and view: with ranks, those that all do in every round."""
    return [] if groups.ranks is None else [(p.trunk, p.view) for p in _passes(groups, batch, want, partial)]


def _empty_pass(groups: ParamGroups, name: str) -> Tensor:
    """The hidden state of a single token, for the part of other ranks in it."""
    ids = torch.zeros(1, 1, dtype=torch.int64, device=groups.device)
    with torch.autocast(groups.device.split(":")[0], torch.bfloat16, enabled=groups.dtype == "bfloat16"):
        return groups.trunk(name)(ids, causal_attention)


def _anchor(groups: ParamGroups, hidden: Tensor) -> None:
    if groups.round is not None:
        groups.round.anchors.append(0 * hidden.sum())


def _passes(groups: ParamGroups, batch: Batch, want: Mapping[str, np.ndarray], partial: bool) -> list[ForwardPass]:
    """The forward passes that some columns need: one per trunk and view, for all models and heads that read it."""
    out: dict[tuple[str, str | None], ForwardPass] = {}
    seq = batch.get("seq")
    model_of = np.array(batch.model_role, object)
    for column, rows in want.items():
        name = parse(column, groups.models, batch.prefixes)
        if name is None:
            raise unknown("quantity of a model here", column, [*quantities, *(f"{m}_logp" for m in groups.models)])
        q = quantities.get(name.quantity)
        if q.scope == "group":
            raise BadValue(
                f"column {column}: a quantity of whole groups has no gradient; name it in an assigner, not in a term"
            )
        if name.view is not None and partial:
            rows = rows & np.array([p is not None for p in batch.prefixes[name.view]], bool)[seq]
        n_with_head = 0
        for model_role in sorted(set(batch.model_role)) if name.model_role is None else [name.model_role]:
            own_rows = rows if name.model_role is not None else rows & (model_of == model_role)[seq]
            if model_role not in groups.models:
                raise unknown("model of the method", model_role, groups.models)
            model = groups.models[model_role]
            missing = _missing_head(q, model)
            if missing and partial and name.model_role is None:
                continue
            if missing and own_rows.any():
                heads = ", ".join(["vocab"] * model.vocab + list(model.heads)) or "none"
                raise BadValue(
                    f"column {column}: model {model_role} has no {missing} head, which {q.name} reads; "
                    f"its heads: {heads}"
                )
            n_with_head += 1
            if own_rows.any():
                request = ColumnRequest(column, q, model_role, np.flatnonzero(own_rows))
                _check_replayable(batch, request)
                forward_pass = out.setdefault((model.trunk, name.view), ForwardPass(model.trunk, name.view))
                forward_pass.requests.setdefault(request.rows.tobytes(), []).append(request)
        if not n_with_head and len(batch.model_role):
            raise BadValue(f"column {column}: no model of this batch has the head that {q.name} reads")
    return list(out.values())


def _missing_head(q: Quantity, model: ResolvedModel) -> str:
    """The first head that a quantity reads and a model lacks; empty where it has all."""
    wanted = [n.removesuffix("_after") for n in q.needs]
    if q.vocabulary and not model.vocab:
        return "vocab"
    return next((h for h in wanted if h in HEADS and h not in model.heads), "")


def _check_replayable(batch: Batch, request: ColumnRequest) -> None:
    if "logprobs" not in request.quantity.needs:
        return
    bad = request.rows[np.isnan(batch.get("temperature")[request.rows])]
    if len(bad):
        name = batch.names[batch.get("seq")[bad[0]]]
        raise BadValue(
            f"sample {name}: its tokens were drawn from a truncated, greedy or steered distribution, so"
            f" {request.column} cannot be computed again; train with top_p=1, top_k=0, temperature > 0 and no steering"
        )


def _values(
    groups: ParamGroups,
    trunk: Model,
    batch: Batch,
    requests: list[ColumnRequest],
    before_states: Tensor,
    after_states: Tensor | None,
    layers: Sequence[Tensor] = (),
) -> list[Tensor]:
    """The values of requests for the same rows, from the hidden states before and after their tokens, [n, D], and where
    one reads them those after each layer, before their tokens.

    Logits are in memory for a chunk of rows at a time.
    """
    rows = requests[0].rows
    ids = torch.from_numpy(batch.ids[batch.place[rows]].astype(np.int64)).to(before_states.device)
    temperatures = np.nan_to_num(batch.get("temperature")[rows], nan=1.0)
    temperature = None if (temperatures == 1).all() else torch.from_numpy(temperatures).to(before_states)
    by_logits = {r.quantity.name: r.quantity for r in requests if r.quantity.vocabulary}
    given = {"hidden": before_states, "ids": ids} | ({} if after_states is None else {"hidden_after": after_states})
    given |= {"residuals": torch.stack([*layers], 1).float()} if layers else {}
    result = (
        _logit_quantities(trunk, by_logits, before_states, ids, temperature, groups.dtype == "bfloat16")
        if by_logits
        else {}
    )
    out: list[Tensor] = []
    for request in requests:
        if request.quantity.vocabulary:
            out.append(result[request.quantity.name])
            continue
        own = dict(given)
        for need in request.quantity.needs - own.keys():
            home = groups.models[request.model_role].heads.get(need.removesuffix("_after"))
            state = after_states if need.endswith("_after") else before_states
            if home is not None and state is not None:
                own[need] = groups[home].heads[need.removesuffix("_after")](state).squeeze(-1)
        out.append(compute(request.quantity.name, own))
    return out


def _logit_quantities(
    trunk: Model,
    by_logits: Mapping[str, Quantity],
    hidden: Tensor,
    ids: Tensor,
    temperature: Tensor | None,
    use_bf16: bool = False,
) -> dict[str, Tensor]:
    """Quantities that read logits, [n] each, from hidden states [n, D], by chunks of rows.

    Rows are padded to a multiple of ROW_MULTIPLE. use_bf16: log-probabilities and entropies by bf16 matmuls, as in the
    trunk, where a kernel does them.
    """
    standard_head = trunk.plain_head and trunk.config.logit_cap is None and by_logits.keys() <= {"logp", "entropy"}
    by_kernel = use_bf16 and standard_head and overrides.active() and hidden.device.type == "cpu"
    kernel = bf16_matmul() if by_kernel else None
    if (
        kernel is not None
        and (logp_and_entropy := kernel.logp(hidden, trunk.lm_head.weight, ids, temperature)) is not None
    ):
        return {n: v for n, v in zip(("logp", "entropy"), logp_and_entropy, strict=True) if n in by_logits}
    size, padding = len(ids), -len(ids) % ROW_MULTIPLE
    hidden, ids = F.pad(hidden, (0, 0, 0, padding)), F.pad(ids, (0, padding))
    temperature = None if temperature is None else F.pad(temperature, (0, padding), value=1.0)
    return {n: v[:size] for n, v in _by_chunks(trunk, by_logits, hidden, ids, temperature).items()}


def _by_chunks(
    trunk: Model, by_logits: Mapping[str, Quantity], hidden: Tensor, ids: Tensor, temperature: Tensor | None
) -> dict[str, Tensor]:
    weight = trunk.lm_head.weight
    step = chunk_rows(weight.shape[0])
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    names = sorted(by_logits)
    if needs_grad and trunk.plain_head and by_logits.keys() <= {"logp", "entropy"}:
        logp_and_entropy: tuple[Tensor, Tensor] = TokenLogProb.apply(
            hidden, weight, ids, temperature, trunk.config.logit_cap, step, "entropy" in by_logits
        )  # type: ignore[assignment]
        return {n: v for n, v in zip(("logp", "entropy"), logp_and_entropy, strict=True) if n in by_logits}
    needs = set[str]().union(*(q.needs for q in by_logits.values()))

    def part(h: Tensor, i: Tensor, t: Tensor | float) -> tuple[Tensor, ...]:
        logits = trunk.logits(h)
        given = {"logits": logits, "ids": i, "hidden": h} | (
            {"logprobs": logprobs(logits, t)} if "logprobs" in needs else {}
        )
        return tuple(compute(n, given) for n in names)

    recompute = needs_grad and hidden.shape[0] * weight.shape[0] > MAX_KEPT_LOGITS
    parts: list[tuple[Tensor, ...]] = []
    for a in range(0, hidden.shape[0], step):
        piece = hidden[a : a + step], ids[a : a + step], _chunk_temperature(temperature, a, step)
        parts.append(
            checkpoint(part, *piece, use_reentrant=False, preserve_rng_state=False) if recompute else part(*piece)
        )
    return {n: torch.cat([p[i] for p in parts]) for i, n in enumerate(names)}


def chunk_rows(vocabulary: int) -> int:
    """How many rows of logits are computed at a time."""
    return max(ROW_MULTIPLE, CHUNK_LOGITS // vocabulary // ROW_MULTIPLE * ROW_MULTIPLE)


def _chunk_temperature(temperature: Tensor | None, a: int, step: int) -> Tensor | float:
    """The temperatures of a chunk of rows; None: 1 everywhere."""
    return 1.0 if temperature is None else temperature[a : a + step]


class TokenLogProb(torch.autograd.Function):
    """The quantities `logp` and `entropy` [n] of tokens from hidden states [n, D], forward and backward by chunks.

    With z = cap tanh(logits / cap) / t, l = log-softmax(z), p = e^l and H = -sum p l:
        d l_i / d z = [i] - p      d H / d z = -p (l + H)      d z / d logits = (1 - (z t / cap)^2) / t
    computed in place: autograd over a gather from a log-softmax writes four [n, V] matrices instead of one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        ids: Tensor,
        temperature: Tensor | None,
        cap: float | None,
        step: int,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Log-probabilities [n] of the ids, and entropies [n] (0 unless asked for)."""
        keep = hidden.shape[0] * weight.shape[0] <= MAX_KEPT_LOGITS
        ctx.temperature, ctx.cap, ctx.step, ctx.kept = temperature, cap, step, list[Tensor]()
        logp, entropies, normalisers = [], [], []
        for a in range(0, len(ids), step):
            logp_all, normaliser = _logprobs(
                hidden[a : a + step], weight, _chunk_temperature(temperature, a, step), cap
            )
            logp.append(compute("logp", {"logprobs": logp_all, "ids": ids[a : a + step]}))
            entropies.append(
                compute("entropy", {"logprobs": logp_all}) if entropy else logp_all.new_zeros(len(logp_all))
            )
            normalisers.append(normaliser)
            if keep:
                ctx.kept.append(logp_all)
        H = torch.cat(entropies)
        ctx.save_for_backward(hidden, weight, ids, H if entropy else None, torch.cat(normalisers))
        return torch.cat(logp), H

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of hidden states and head weight."""
        hidden, weight, ids, H, normalisers = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for n, a in enumerate(range(0, len(ids), ctx.step)):
            rows = slice(a, a + ctx.step)
            h, t = hidden[rows], _chunk_temperature(ctx.temperature, a, ctx.step)
            logp_all = ctx.kept[n] if ctx.kept else _logprobs(h, weight, t, ctx.cap)[0]
            if ctx.kept:
                ctx.kept[n] = None
            g = (grad_logp[rows] / t)[:, None]
            cap_slope = (
                None
                if ctx.cap is None
                else (logp_all + normalisers[rows]).mul_(_as_column(t) / ctx.cap).square_().neg_().add_(1)
            )
            if H is None:
                grad_logits = logp_all.exp_().mul_(-g)
            else:
                factor = (logp_all + H[rows, None]).mul_((grad_entropy[rows] / t)[:, None]).add_(g).neg_()
                grad_logits = logp_all.exp_().mul_(factor)
            grad_logits.scatter_add_(-1, ids[rows, None], g.to(grad_logits.dtype))
            grad_logits = (grad_logits if cap_slope is None else grad_logits.mul_(cap_slope)).to(h.dtype)
            if grad_hidden is not None:
                torch.mm(grad_logits, weight, out=grad_hidden[rows])
            if grad_weight is not None:
                grad_weight.addmm_(grad_logits.T, h)
        return grad_hidden, grad_weight, None, None, None, None, None


def _logprobs(hidden: Tensor, weight: Tensor, t: Tensor | float, cap: float | None) -> tuple[Tensor, Tensor]:
    """Log-probabilities [n, V] of hidden states, and the normaliser [n, 1]: logits / t less log-probabilities."""
    logits = soft_cap(hidden @ weight.T, cap)
    logp_all = logprobs(logits, t)
    return logp_all, logits[:, :1] / _as_column(t) - logp_all[:, :1]


def _as_column(t: Tensor | float) -> Tensor | float:
    """Temperatures [n] as [n, 1]; a number as it is."""
    return t[:, None] if isinstance(t, Tensor) else t


def _assemble(parts: list[tuple[np.ndarray, Tensor]], size: int, groups: ParamGroups) -> Tensor:
    """Parts of a column in the order of the batch's rows: [size] or [size, D], NaN where no part has the row."""
    if len(parts) == 1 and len(parts[0][0]) == size:
        return parts[0][1]
    if not parts:
        return torch.full((size,), torch.nan, dtype=groups.start.lm_head.weight.dtype, device=groups.device)
    rows = torch.from_numpy(np.concatenate([r for r, _ in parts])).to(groups.device)
    values = torch.cat([v for _, v in parts])
    return torch.full((size, *values.shape[1:]), torch.nan, dtype=values.dtype, device=values.device).index_copy(
        0, rows, values
    )
