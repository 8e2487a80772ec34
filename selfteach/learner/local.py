"""The reference learner: one process, one copy of every parameter group; other learners are tested against it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadCheckpoint, BadValue, unknown
from ..core.method import ModelRole, Update, WeightSpec
from ..model import files, lora, peft_files
from ..model.base import Model
from ..model.devices import keep_freed_memory, resolve_device, resolve_dtype
from .backward import accumulate_gradients, columns_by_parts
from .errors import AgreedOutOfMemory
from .group_columns import group_column, is_group_column
from .non_finite import non_finite_report
from .optimiser import Optimisers, named_parameters
from .param_groups import ParamGroup, ParamGroups
from .rounds import micro_batches
from .settings import LearnerSettings

if TYPE_CHECKING:
    from .ranks import Ranks

T = TypeVar("T")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full, of a GPU or of this machine."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class LocalLearner:
    """The Learner of core.protocols in one process.

    start         the run's model, not to be changed: groups of source "start" are copies of it, made on first use
    frozen        groups that nothing will write to: they share the start's tensors
    donate_start  the start is not used elsewhere: its only group may take its tensors
    seed          of adapters and their dropout (scalar heads begin at zero)

    The same inputs give the same bits on the same machine and number of threads; the split into micro-batches changes
    rounding only. So where memory runs out, micro-batches are halved from then on, the interrupted computation is
    repeated, and `warn` is called.
    """

    def __init__(
        self,
        weights: Mapping[str, WeightSpec],
        models: Mapping[str, ModelRole],
        start: Model,
        seed: int = 0,
        settings: LearnerSettings | None = None,
        adapter: lora.Adapter | None = None,
        frozen: Collection[str] = (),
        donate_start: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        s = settings or LearnerSettings()
        device = resolve_device(s.device)
        dtype = resolve_dtype(s.dtype, device)
        self.settings = replace(s, device=device, dtype=dtype)
        self.tokens = self.settings.micro_tokens  # of a micro-batch at present
        self.warn: Callable[[str], None] = warnings.warn
        self.seed = seed
        if device == "cpu":
            keep_freed_memory()
        self.groups = ParamGroups(
            weights,
            models,
            start,
            device,
            dtype,
            adapter,
            frozen,
            seed,
            donate_start,
            s.recompute,
            ranks,
            s.tensor_parallel,
        )
        self.optimisers = Optimisers(self.groups, self.settings)
        self.changed: set[str] = set()  # groups that differ from their source: those a checkpoint must hold
        self._pending: list[tuple[Batch, Update]] = []  # what went into the gradient since the last step
        self._finite = True

    @property
    def models(self) -> Collection[str]:
        """Names of the models whose columns it computes."""
        return self.groups.models.keys()

    def forward(self, batch: Batch, want: Sequence[str]) -> None:
        """Add `[prox_][model_]quantity[_view]` columns to the batch under the current weights, without gradient.

        f32, of a float64 model f64. A bare quantity means each example's own model. NaN where an example has no such
        view, or its model no such head. Raises UnknownName for what is no quantity, BadValue for rows whose sampling
        cannot be replayed.
        """
        rows = np.ones(len(batch.place), bool)
        columns = self._columns(batch, dict.fromkeys(want, rows), partial=True)
        for name, values in columns.items():
            batch.put(name, "token", values.cpu().numpy())

    def backward(self, batch: Batch, update: Update) -> Mapping[str, float]:
        """Add the gradient of an update's loss to `update.params`, and return metrics.

        loss = sum over terms i of coef_i * sum over rows of w_i * l_i, with the loss weights w_i in columns w0, w1 ...
        Returns loss, loss/<term>, rows; approx_kl and ratio_max where a term reads logp and old_logp; advantage_abs and
        entropy where one reads these; what terms declare. Raises BadValue for columns that are missing or unknown on a
        row that is read; nothing has changed then.
        """
        self._check_groups(update)

        def work(retry: bool) -> Mapping[str, float]:
            for p in (
                named_parameters(
                    self.groups, tuple({g for _, u in self._pending for g in u.params} | set(update.params))
                ).values()
                if retry
                else ()
            ):
                p.grad = None
            todo = [*(self._pending if retry else ()), (batch, update)]
            with self.groups.fast_paths():
                return [accumulate_gradients(self.groups, b, u, self.tokens) for b, u in todo][-1]

        metrics = self._with_memory_retry(batch, work)
        self._pending.append((batch, update))
        self._finite = self._finite and bool(np.isfinite(metrics["loss"]))
        return metrics

    def step(self, update: Update, lr: float) -> Mapping[str, float]:
        """Clip the gradient to the global norm `grad_clip`, step `update.params` by AdamW, and clear the gradient.

        Returns grad_norm (before clipping) and lr.
        Raises NotFinite naming the sequences whose loss or gradient is not finite; weights and optimiser are then as
        before.
        """
        self._check_groups(update)
        params = list(named_parameters(self.groups, update.params).values())
        self._complete_gradients(params)
        grads = [p.grad for p in params if p.grad is not None]
        since, finite = self._pending, self._finite
        self._pending, self._finite = [], True
        try:
            length = self._gradient_norm(grads)
            if not (finite and np.isfinite(length)):
                for p in params:
                    p.grad = None
                raise non_finite_report(self.groups, since)
            if length > self.settings.grad_clip:
                self._clip(params, length)
            if grads:
                self.optimisers.step(update.params, lr)
                self.changed |= set(update.params)
                self.groups.steps += 1
        finally:
            for p in params:
                p.grad = None
        return {"grad_norm": length, "lr": lr}

    def _complete_gradients(self, params: Sequence[Tensor]) -> None:
        """Add what other ranks have to gradients; here there are none."""

    def _gradient_norm(self, grads: Sequence[Tensor]) -> float:
        """The global norm of gradients; 0 where there are none."""
        return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0

    def _clip(self, params: Sequence[Tensor], length: float) -> None:
        """Scale a gradient of this norm down to `grad_clip`."""
        torch.nn.utils.clip_grads_with_norm_(params, self.settings.grad_clip, torch.tensor(length))

    def logprob_mismatch(self, batch: Batch) -> dict[str, float]:
        """The log-prob mismatch of learner and engine: |logp - old_logp| over the rows that have both.

        Returns mean, p99 and max (NaN without rows), and the number of rows; what it is of each token, old_logp - logp,
        it adds to the batch as the column `logprob_gap`. Call it before the first step, under the weights that sampled.
        """
        old = np.asarray(batch.get("old_logp"), np.float64)
        rows = np.isfinite(old) & np.isfinite(batch.get("temperature"))
        if not rows.any():
            return {"mean": float("nan"), "p99": float("nan"), "max": float("nan"), "rows": 0}
        logp = self._columns(batch, {"logp": rows})["logp"].cpu().numpy()
        gap = np.where(rows, old - logp, np.nan)
        batch.put("logprob_gap", "token", gap.astype(np.float32))
        mismatch = np.abs(gap[rows])
        return {
            "mean": float(mismatch.mean()),
            "p99": float(np.quantile(mismatch, 0.99)),
            "max": float(mismatch.max()),
            "rows": int(rows.sum()),
        }

    def weights(self, group: str) -> Mapping[str, Tensor]:
        """The weights of a group by name, adapters merged in; not copies where there are none.

        A head's are `value_head.weight` and so on.
        """
        return self._group(group).merged_weights()

    def trunk(self, group: str) -> Model:
        """The transformer of a parameter group, with its current weights."""
        return self.groups.trunk(group)

    def structure(self, group: str) -> Model:
        """The transformer of a parameter group for its shape alone."""
        return self.groups.trunk(group)

    def fingerprint(self, group: str) -> str:
        """A short hash of a group's weights, as `files.fingerprint` gives it."""
        return files.fingerprint(self.weights(group))

    def copy(self, target: str, source: str, rate: float = 1.0) -> None:
        """Update a group towards another: target += rate * (source - target), on the parameters that both have."""
        for name in (source, target):
            self._group(name)
        self.groups.copy(target, source, rate)
        self.changed.add(target)

    def reset_optimisers(self, groups: Sequence[str]) -> None:
        """Drop the moments and step counts of every optimiser that steps one of these groups."""
        for group in groups:
            self._group(group)
        self.optimisers.clear(groups)

    def put(self, group: str, tensors: Mapping[str, Any], where: str = "given weights") -> None:
        """Set a group's weights; heads may be left out.

        Raises BadCheckpoint for a tensor that is missing, extra or of another shape.
        """
        self._group(group)
        own = self.groups.writable(group).named_parameters()
        heads = {
            n: p
            for n, p in own.items()
            if n.split(".")[0] in {f"{h}_head" for h in self.groups[group].heads} and n not in tensors
        }
        with torch.no_grad():
            files.copy_tensors(
                {n: p for n, p in own.items() if n not in heads},
                {n: torch.as_tensor(t) for n, t in tensors.items()},
                where,
            )
        self.changed.add(group)

    def save(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Write a checkpoint into an existing folder.

        Files: `<group>.safetensors` of every changed group, `optimiser.safetensors`, `learner.json`. Of a group in
        `skip`, which the caller writes as a model, only the heads are written, if it has any.
        """
        folder = Path(folder)
        for group in sorted(self.changed):
            tensors = self._checkpoint_tensors(group, skip)
            if tensors:
                files.write_tensors(folder / f"{group}.safetensors", tensors)
        files.write_tensors(folder / "optimiser.safetensors", self.optimisers.tensors())
        self._write_state(folder, skip)

    def _write_state(self, folder: Path, skip: Collection[str]) -> None:
        state: dict[str, Any] = {
            "groups": sorted(self.changed),
            "skipped": sorted(set(skip) & self.changed),
            "tokens": self.tokens,
        }
        state |= {"steps": self.groups.steps, "bases": self._base_fingerprints()}
        (folder / "learner.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")

    def load(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Read what `save` wrote into a new learner, bit for bit; skipped groups are for the caller to `put`.

        Raises BadCheckpoint naming the file and what is wrong with it.
        """
        folder = Path(folder)
        state = self._read_state(folder, skip)
        moments = files.read_tensors(folder / "optimiser.safetensors", mapped=True)
        self._load_groups(folder, state)
        self.optimisers.fill(moments, folder / "optimiser.safetensors")
        self.groups.steps, self.tokens = state["steps"], min(state["tokens"], self.tokens)
        self._pending, self._finite = [], True

    def load_weights(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Of what `save` wrote the weights alone, bit for bit, for a learner that only serves to measure them."""
        folder = Path(folder)
        self._load_groups(folder, self._read_state(folder, skip))

    def _load_groups(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Read the groups that a checkpoint holds; nothing is changed where a file is broken."""
        groups, skipped = set(state["groups"]), set(state["skipped"])
        read = {
            g: files.read_tensors(folder / f"{g}.safetensors", mapped=True)
            for g in sorted(groups)
            if self._checkpoint_tensors(g, skipped)
        }
        for group, tensors in read.items():
            self.groups.writable(group)
            files.copy_tensors(self._checkpoint_tensors(group, skipped), tensors, folder / f"{group}.safetensors")
        self.changed = groups

    def _read_state(self, folder: Path, skip: Collection[str]) -> dict[str, Any]:
        """What learner.json of a checkpoint says. Raises BadCheckpoint where it is not for this learner."""
        file = folder / "learner.json"
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
            groups, _ = set(state["groups"]), set(state["skipped"])
            state = {"steps": 0, "bases": {}, "tokens": self.tokens} | state
        except FileNotFoundError:
            raise BadCheckpoint(
                f"{file}: missing; a learner's checkpoint holds learner.json and optimiser.safetensors"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise BadCheckpoint(f"{file}: not what a learner wrote ({type(error).__name__}: {error})") from None
        if foreign := sorted(g for g in groups if g not in self.groups):
            raise BadCheckpoint(f"{file}: it holds the weights {', '.join(foreign)}, which this method does not have")
        self._check_bases(state, file)
        if stale := sorted(self.changed - groups - set(skip)):
            raise BadCheckpoint(
                f"{file}: it does not hold {', '.join(stale)}, which this learner has trained; load into a new learner"
            )
        return state

    def _check_bases(self, state: Mapping[str, Any], file: Path) -> None:
        """Raise BadCheckpoint where adapters of a checkpoint are over other bases than these."""
        for root in self._base_fingerprints():
            peft_files.check_base(file, self.groups.base(root), root)

    def _checkpoint_tensors(self, group: str, skip: Collection[str]) -> dict[str, Tensor]:
        """The tensors of a group that a checkpoint holds."""
        own = self.groups[group]
        return {
            n: p
            for n, p in own.named_parameters().items()
            if group not in skip or own.trunk is None or n not in own.trunk.named_tensors()
        }

    def _base_fingerprints(self) -> dict[str, str]:
        """Fingerprints of the base models of adapters, by their origin."""
        if self.groups.adapter is None:
            return {}
        roots = {self.groups.origin(g) for s in self.groups.models.values() for g in [s.trunk]}
        return {root: files.fingerprint(self.groups.base(root).named_tensors()) for root in sorted(roots)}

    def _columns(self, batch: Batch, want: Mapping[str, np.ndarray], partial: bool = False) -> dict[str, Tensor]:
        """Columns without a gradient, by micro-batches: [N] or [N, D], NaN on rows not in `want`."""
        per_group = [column for column in want if is_group_column(column, self.groups, batch)]
        per_token = {column: rows for column, rows in want.items() if column not in per_group}

        def work(_: bool) -> dict[str, Tensor]:
            with self.groups.fast_paths():
                pieces = micro_batches(self.groups, batch, self.tokens) or []
                columns = columns_by_parts(self.groups, batch, per_token, pieces, partial) if per_token else {}
                return columns | {column: group_column(self.groups, batch, column, self.tokens) for column in per_group}

        return self._with_memory_retry(batch, work)

    def _with_memory_retry(self, batch: Batch, work: Callable[[bool], T]) -> T:
        """The result of work(retry), with micro-batches halved as long as memory runs out.

        Raises BadValue where one sequence alone does not fit.
        """
        retry = False
        while True:
            try:
                return work(retry)
            except RuntimeError as error:
                if not self._can_repeat(error):
                    raise
            longest = int(np.diff(batch.start).max())
            if self.tokens <= longest:  # a sequence alone
                raise BadValue(
                    f"learner: out of memory on {self.settings.device} with one sequence of {longest} tokens "
                    "at a time; take --recompute, --dtype bfloat16, --optimiser adamw8bit, shorter --max-tokens "
                    "or a smaller model"
                )
            self.tokens, retry = self.tokens // 2, True
            if self.settings.device.startswith("cuda"):
                torch.cuda.empty_cache()
            self.warn(
                f"out of memory: micro-batches are of {self.tokens} tokens from here on; this computation is repeated"
            )

    def _can_repeat(self, error: RuntimeError) -> bool:
        """Whether a computation can be done again with less memory; with ranks, where all of them do."""
        return out_of_memory(error) if self.groups.ranks is None else isinstance(error, AgreedOutOfMemory)

    def _group(self, name: str) -> ParamGroup:
        if name not in self.groups:
            raise unknown("weight group", name, self.groups.specs)
        return self.groups[name]

    def _check_groups(self, update: Update) -> None:
        for name in update.params:
            if name not in self.groups:
                raise unknown("weight group", name, self.groups.specs)
