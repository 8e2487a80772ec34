"""The plain learner: one process, one copy of every weight group. Every other backend is tested against it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadCheckpoint, BadValue, unknown
from ..core.method import Member, Update, Weights
from ..model import files, lora
from ..model.base import Model
from ..model.devices import keep_freed
from .backward import accumulate, columns_by_parts
from .blame import blame
from .groups import Groups
from .microbatch import plan
from .optimiser import Optimisers, named
from .products import fast
from .settings import Settings
from .tied import group_column, of_groups

T = TypeVar("T")


def out_of_memory(error: BaseException) -> bool:
    """True for torch's complaint that memory is full, of a GPU or of this machine."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class LocalLearner:
    """core.protocols.Learner in this process.

    `start` is the run's model: groups of source "start" are copies of it, made when first asked for, so it must stay as it is. Those in
    `still`, which nothing will write to, share its tensors. `given`: nobody else needs it, so that the only group of it may have them.
    `seed` is that of adapters and their dropout (scalar heads begin at zero).
    The same inputs give the same bits on the same machine and number of threads; how a batch is cut changes rounding only. So where
    memory runs out, micro-batches are halved from then on, and what was under way is done again (`told` hears of it).
    """

    def __init__(
        self,
        weights: Mapping[str, Weights],
        cast: Mapping[str, Member],
        start: Model,
        seed: int = 0,
        settings: Settings | None = None,
        adapter: lora.Adapter | None = None,
        still: Collection[str] = (),
        given: bool = False,
    ):
        self.settings = settings or Settings()
        self.tokens = self.settings.tokens  # of a micro-batch, now
        self.told: Callable[[str], None] = warnings.warn
        self.seed = seed
        s = self.settings
        if s.device == "cpu":
            keep_freed()
        self.groups = Groups(weights, cast, start, s.device, s.dtype, adapter, still, seed, given, s.recompute)
        self.optimisers = Optimisers(self.groups, self.settings)
        self.changed: set[str] = set()  # groups that are no longer as they began: what a checkpoint must hold
        self._since: list[tuple[Batch, Update]] = []  # what went into the gradient since the last step
        self._finite = True

    def forward(self, batch: Batch, want: Sequence[str]) -> None:
        """Add `[prox_][member_]quantity[_view]` columns to the batch under the weights of now, f32 (f64 for an f64 model), no gradient.

        A bare quantity means each example's own member. NaN where an example has no such view, or its member no such head.
        Raises UnknownName for what is no quantity, BadValue for rows whose sampling cannot be replayed.
        """
        rows = np.ones(len(batch.place), bool)
        columns = self._columns(batch, dict.fromkeys(want, rows), partial=True)
        for name, values in columns.items():
            batch.put(name, "token", values.cpu().numpy())

    def backward(self, batch: Batch, update: Update) -> Mapping[str, float]:
        """Add the gradient of sum over terms of coef * sum_rows w * l to `update.params`; weights are the columns w0, w1 ...

        Returns loss, loss/<term>, rows; approx_kl and ratio_max where a term reads logp and old_logp; entropy where one reads it.
        Raises BadValue for columns that are missing or unknown on a row that is read; nothing has changed then.
        """
        self._known(update)

        def work(again: bool) -> Mapping[str, float]:
            for p in named(self.groups, tuple({g for _, u in self._since for g in u.params} | set(update.params))).values() if again else ():
                p.grad = None
            todo = [*(self._since if again else ()), (batch, update)]
            with fast():
                return [accumulate(self.groups, b, u, self.tokens) for b, u in todo][-1]

        metrics = self._in_memory(batch, work)
        self._since.append((batch, update))
        self._finite = self._finite and bool(np.isfinite(metrics["loss"]))
        return metrics

    def step(self, update: Update, lr: float) -> Mapping[str, float]:
        """Clip the gradient to the global norm `clip`, move `update.params` by AdamW, and clear it. Returns grad_norm (unclipped) and lr.

        Raises NotFinite naming the sequences whose loss or gradient is not finite; weights and optimiser are then as before.
        """
        self._known(update)
        params = list(named(self.groups, update.params).values())
        grads = [p.grad for p in params if p.grad is not None]
        since, finite = self._since, self._finite
        self._since, self._finite = [], True
        try:
            length = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
            if not (finite and np.isfinite(length)):
                for p in params:
                    p.grad = None
                raise blame(self.groups, since)
            if length > self.settings.clip:
                torch.nn.utils.clip_grads_with_norm_(params, self.settings.clip, torch.tensor(length))
            if grads:
                self.optimisers.step(update.params, lr)
                self.changed |= set(update.params)
                self.groups.steps += 1
        finally:
            for p in params:
                p.grad = None
        return {"grad_norm": length, "lr": lr}

    def gap(self, batch: Batch) -> dict[str, float]:
        """How far learner and sampler are apart: |logp - old_logp| over the rows that know it (mean, p99, max; NaN without rows), and their number.

        It means something under the weights that sampled: call it before the first step.
        """
        old = np.asarray(batch.get("old_logp"), np.float64)
        rows = np.isfinite(old) & np.isfinite(batch.get("temperature"))
        if not rows.any():
            return {"mean": float("nan"), "p99": float("nan"), "max": float("nan"), "rows": 0}
        logp = self._columns(batch, {"logp": rows})["logp"].cpu().numpy()
        away = np.abs(logp[rows] - old[rows])
        return {"mean": float(away.mean()), "p99": float(np.quantile(away, 0.99)), "max": float(away.max()), "rows": int(rows.sum())}

    def weights(self, group: str) -> Mapping[str, Tensor]:
        """The parameters of a group by name; not copies, unless adapters are merged in. A head's are `value_head.weight` and so on."""
        return self._group(group).whole()

    def fingerprint(self, group: str) -> str:
        """A short hash of a group's weights, as `files.fingerprint` gives it."""
        return files.fingerprint(self.weights(group))

    def copy(self, target: str, source: str, rate: float = 1.0) -> None:
        """target += rate * (source - target); heads that only one of them has are left alone."""
        for name in (source, target):
            self._group(name)
        self.groups.copy(target, source, rate)
        self.changed.add(target)

    def put(self, group: str, tensors: Mapping[str, Any], where: str = "given weights") -> None:
        """Set a group's weights; heads may be left out. Raises BadCheckpoint for a tensor that is missing, extra or of another shape."""
        self._group(group)
        own = self.groups.own(group).names()
        heads = {n: p for n, p in own.items() if n.split(".")[0] in {f"{h}_head" for h in self.groups[group].heads} and n not in tensors}
        with torch.no_grad():
            files.fill({n: p for n, p in own.items() if n not in heads}, {n: torch.as_tensor(t) for n, t in tensors.items()}, where)
        self.changed.add(group)

    def save(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Write into an existing folder: `<group>.safetensors` of every group that has changed, `optimiser.safetensors`, `learner.json`.

        Of a group in `skip`, which somebody else writes as a model, only the heads are written, if it has any.
        """
        folder = Path(folder)
        for group in sorted(self.changed):
            tensors = self._saved(group, skip)
            if tensors:
                files.write_tensors(folder / f"{group}.safetensors", tensors)
        files.write_tensors(folder / "optimiser.safetensors", self.optimisers.tensors())
        said: dict[str, Any] = {"groups": sorted(self.changed), "skipped": sorted(set(skip) & self.changed), "tokens": self.tokens}
        said |= {"steps": self.groups.steps, "bases": self._bases()}
        (folder / "learner.json").write_text(json.dumps(said, indent=2) + "\n")

    def load(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Read what `save` wrote, bit for bit, into a new learner. Groups that were skipped are for the caller to `put`.

        Raises BadCheckpoint naming the file and what is wrong with it.
        """
        folder = Path(folder)
        file = folder / "learner.json"
        try:
            said = json.loads(file.read_text())
            groups, skipped = set(said["groups"]), set(said["skipped"])
            said = {"steps": 0, "bases": {}, "tokens": self.tokens} | said
        except FileNotFoundError:
            raise BadCheckpoint(f"{file}: missing; a learner's checkpoint holds learner.json and optimiser.safetensors") from None
        except (ValueError, KeyError, TypeError) as error:
            raise BadCheckpoint(f"{file}: not what a learner wrote ({type(error).__name__}: {error})") from None
        if foreign := sorted(g for g in groups if g not in self.groups):
            raise BadCheckpoint(f"{file}: it holds the weights {', '.join(foreign)}, which this method does not have")
        for root in self._bases():
            lora.same_base(file, self.groups.base(root), root)
        if stale := sorted(self.changed - groups - set(skip)):
            raise BadCheckpoint(f"{file}: it does not hold {', '.join(stale)}, which has moved here; load into a new learner")
        moments = files.read_tensors(folder / "optimiser.safetensors")
        read = {g: files.read_tensors(folder / f"{g}.safetensors") for g in sorted(groups) if self._saved(g, skipped)}
        for group, tensors in read.items():
            self.groups.own(group)
            files.fill(self._saved(group, skipped), tensors, folder / f"{group}.safetensors")
        self.optimisers.fill(moments, folder / "optimiser.safetensors")
        self.changed, self.groups.steps, self.tokens = groups, said["steps"], min(said["tokens"], self.tokens)
        self._since, self._finite = [], True

    def _saved(self, group: str, skip: Collection[str]) -> dict[str, Tensor]:
        """What a checkpoint holds of a group."""
        own = self.groups[group]
        return {n: p for n, p in own.names().items() if group not in skip or own.trunk is None or n not in own.trunk.names()}

    def _bases(self) -> dict[str, str]:
        """What the adapters are over, as fingerprints."""
        if self.groups.adapter is None:
            return {}
        roots = {self.groups.root(g) for s in self.groups.seats.values() for g in [s.trunk]}
        return {root: files.fingerprint(self.groups.base(root).names()) for root in sorted(roots)}

    def _columns(self, batch: Batch, want: Mapping[str, np.ndarray], partial: bool = False) -> dict[str, Tensor]:
        """Columns without a gradient, by micro-batches, as tensors over all rows (NaN where nothing was asked)."""
        tied = [column for column in want if of_groups(column, self.groups, batch)]
        each = {column: rows for column, rows in want.items() if column not in tied}

        def work(_: bool) -> dict[str, Tensor]:
            with fast():
                pieces = plan(batch, self.tokens, sharing=self.groups.sharing) or []
                found = columns_by_parts(self.groups, batch, each, pieces, partial) if each else {}
                return found | {column: group_column(self.groups, batch, column, self.tokens) for column in tied}

        return self._in_memory(batch, work)

    def _in_memory(self, batch: Batch, work: Callable[[bool], T]) -> T:
        """What work(again) gives, with smaller and smaller micro-batches as long as memory runs out. Raises BadValue where none is left."""
        again = False
        while True:
            try:
                return work(again)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
            longest = int(np.diff(batch.start).max())
            if self.tokens <= longest:  # a sequence alone
                raise BadValue(
                    f"learner: out of memory on {self.settings.device} with one sequence of {longest} tokens at a time; "
                    "take --recompute, --dtype bfloat16, --optimiser adamw8bit, shorter --max-tokens or a smaller model"
                )
            self.tokens, again = self.tokens // 2, True
            if self.settings.device.startswith("cuda"):
                torch.cuda.empty_cache()
            self.told(f"out of memory: micro-batches are of {self.tokens} tokens from here on; what was under way is done again")

    def _group(self, name: str):
        if name not in self.groups:
            raise unknown("weight group", name, self.groups.specs)
        return self.groups[name]

    def _known(self, update: Update) -> None:
        for name in update.params:
            if name not in self.groups:
                raise unknown("weight group", name, self.groups.specs)
