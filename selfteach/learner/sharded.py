"""The sharded learner: weights, gradients and moments in parts over N processes (PyTorch's FSDP2), one controller.

Rank 0 is the run. Each operation of the `Learner` protocol is ordered by it and carried out by all ranks with the code
of `LocalLearner`: what differs is in `rounds.py` (who has which sequences), `sharding.py` (tensors in parts) and here
(norms, moments, and whole tensors for engines and checkpoints, one at a time). The files of a checkpoint are those of
`LocalLearner`, so any number of ranks, or none, reads them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadCheckpoint, BadValue, SelfteachError
from ..core.method import ModelRole, Update, WeightSpec
from ..core.registry import quantities
from ..core.serial import from_json, to_json
from ..kernels.fast_paths import fast_paths
from ..model import files, lora
from ..model.base import Model
from ..model.devices import resolve_device
from .columns import live_column_name
from .errors import RankFailed
from .local import LocalLearner, out_of_memory
from .optimiser import named_parameters
from .param_groups import local
from .rank_processes import Placer
from .ranks import NOTHING, Division, Ranks, ranks_of, world_size
from .settings import LearnerSettings
from .sharding import copies, like, part_of, skeleton, whole
from .tensor_parallel import check_tensor_parallel
from .terms import live_columns

T = TypeVar("T")


class ShardedLearner(LocalLearner):
    """The Learner of core.protocols over several processes; its methods are for rank 0.

    The gradient is the sum over all sequences, so it equals that of one process but for rounding. Scalar heads are
    small, and whole on every rank.
    """

    ranks: Ranks
    number: int  # by which the other ranks know it

    def __init__(
        self,
        ranks: Ranks,
        weights: Mapping[str, WeightSpec],
        models: Mapping[str, ModelRole],
        start: Model,
        seed: int,
        settings: LearnerSettings,
        adapter: lora.Adapter | None,
        frozen: Collection[str],
    ) -> None:
        self.ranks = ranks
        super().__init__(weights, models, start, seed, settings, adapter, frozen, ranks=ranks)

    @classmethod
    def started(
        cls,
        weights: Mapping[str, WeightSpec],
        models: Mapping[str, ModelRole],
        start: Model,
        seed: int = 0,
        settings: LearnerSettings | None = None,
        adapter: lora.Adapter | None = None,
        frozen: Collection[str] = (),
        files: Sequence[str] = (),
        placer: Placer | None = None,
    ) -> ShardedLearner:
        """A learner on rank 0, with its other ranks, which are started unless they run.

        files   of a user's own that register what terms are made of
        placer  starts the other ranks (ranks.py)

        Raises BadValue for what cannot be sharded, or started.
        """
        s = settings or LearnerSettings()
        if s.optimiser != "adamw":
            raise BadValue(f"optimiser {s.optimiser}: not with --learner fsdp, whose moments are sharded; take adamw")
        check_tensor_parallel(start, s.tensor_parallel, world_size(s.world), adapter is not None)
        with fast_paths():  # kernels are built here, where no other rank waits, and found in the cache there
            pass
        ranks = ranks_of(world_size(s.world), resolve_device(s.device), s.learner_seconds, files, placer)
        own = {f.name: getattr(s, f.name) for f in fields(LearnerSettings)}
        shapes = None
        if adapter is not None:
            tensors = {n: torch.empty_like(t, device="meta") for n, t in adapter.tensors.items()}
            shapes = lora.Adapter(adapter.lora, tensors)
        roles, specs = to_json(dict(models)), to_json(dict(weights))
        given = (specs, roles, skeleton(start), seed, own, shapes, sorted(frozen))
        number, ranks.learners = ranks.learners, ranks.learners + 1
        make = lambda: cls(ranks, weights, models, start, seed, s, adapter, frozen)  # noqa: E731
        made = in_step(ranks, "new", number, given, make)
        made.number = number
        weakref.finalize(made, ranks.gone.append, number)
        return made

    @classmethod
    def of_rank(
        cls,
        ranks: Ranks,
        weights: Any,
        models: Any,
        start: Model,
        seed: int,
        settings: Mapping[str, Any],
        adapter: lora.Adapter | None,
        frozen: Collection[str],
    ) -> ShardedLearner:
        """The learner of a rank above 0, of what rank 0 sent."""
        given: dict[str, Any] = {**settings, "device": ranks.device}
        own = LearnerSettings(**given)
        return cls(ranks, from_json(weights), from_json(models), start, seed, own, adapter, frozen)

    # ---- operations: ordered on rank 0, carried out by all

    def carry_out(self, name: str, given: Sequence[Any]) -> Any:
        """Carry out an order, on any rank."""
        work: Callable[..., Any] = getattr(self, f"_do_{name}")
        return work(*given)

    def _all(self, name: str, *given: Any) -> Any:
        return in_step(self.ranks, name, self.number, given, lambda: self.carry_out(name, given))

    def forward(self, batch: Batch, want: Sequence[str]) -> None:
        """As LocalLearner.forward."""
        self._all("forward", batch, list(want))

    def _do_forward(self, batch: Batch, want: Sequence[str]) -> None:
        super().forward(batch, want)

    def backward(self, batch: Batch, update: Update) -> Mapping[str, float]:
        """As LocalLearner.backward."""
        return self._all("backward", batch, as_json(update))

    def _do_backward(self, batch: Batch, update: Any) -> Mapping[str, float]:
        update = self._update(update)
        heads = self._unread_heads(batch, update)
        before = [p.grad for p in heads]
        metrics = super().backward(batch, update)
        for p, grad in zip(heads, before, strict=True):
            p.grad = grad  # FSDP gave it zeros, with which weight decay would move it
        return metrics

    def step(self, update: Update, lr: float) -> Mapping[str, float]:
        """As LocalLearner.step."""
        return self._all("step", as_json(update), lr)

    def _do_step(self, update: Any, lr: float) -> Mapping[str, float]:
        return super().step(self._update(update), lr)

    def _update(self, sent: Any) -> Update:
        """An update that rank 0 sent. Raises RuntimeError, which ends this rank, where it does not know its terms."""
        try:
            return from_json(sent)
        except SelfteachError as error:
            raise RuntimeError(f"{error}; register it in a file that --use names") from error

    def logprob_mismatch(self, batch: Batch) -> dict[str, float]:
        """As LocalLearner.logprob_mismatch."""
        return self._all("logprob_mismatch", batch)

    def _do_logprob_mismatch(self, batch: Batch) -> dict[str, float]:
        return super().logprob_mismatch(batch)

    def copy(self, target: str, source: str, rate: float = 1.0) -> None:
        """As LocalLearner.copy."""
        self._all("copy", target, source, rate)

    def _do_copy(self, target: str, source: str, rate: float) -> None:
        super().copy(target, source, rate)

    def reset_optimisers(self, groups: Sequence[str]) -> None:
        """As LocalLearner.reset_optimisers."""
        self._all("reset_optimisers", list(groups))

    def _do_reset_optimisers(self, groups: Sequence[str]) -> None:
        super().reset_optimisers(groups)

    # ---- gradients

    @property
    def _division(self) -> Division:
        assert self.groups.division is not None
        return self.groups.division

    def gradients(self, params: Sequence[str]) -> dict[str, Tensor]:
        """The gradient so far by `group/parameter`, whole, on rank 0."""
        return self._all("gradients", tuple(params))

    def _do_gradients(self, params: tuple[str, ...]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for name, p in named_parameters(self.groups, params).items():
            if hasattr(p, "to_local"):
                if p.grad is not None:
                    out[name] = whole(p.grad)
            elif any(self.ranks.gather(p.grad is not None)):
                out[name] = self._division.sum(torch.zeros_like(p) if p.grad is None else p.grad.clone())
        return out

    def _unread_heads(self, batch: Batch, update: Update) -> list[Tensor]:
        """Output embeddings of their own of trained groups that no column of an update reads."""
        read: set[str] = set()
        for column in live_columns(update, self.groups, batch):
            name = live_column_name(column, self.groups, batch)
            if name is not None and quantities.get(name.quantity).vocabulary:
                roles = set(batch.model_role) if name.model_role is None else {name.model_role}
                read |= {self.groups.models[m].trunk for m in roles if m in self.groups.models}
        trunks = [self.groups[g].trunk for g in update.params if g not in read]
        own = [t for t in trunks if t is not None and not self.groups.adapter]
        return [t.lm_head.weight for t in own if any(p is t.lm_head.weight for p in _untied(t))]

    def _complete_gradients(self, params: Sequence[Tensor]) -> None:
        """Sum the gradients of scalar heads, which are whole on every rank; those of trunks are summed already."""
        for p in params:
            if hasattr(p, "to_local") or not any(self.ranks.gather(p.grad is not None)):
                continue
            p.grad = self._division.sum(torch.zeros_like(p) if p.grad is None else p.grad)

    def _gradient_norm(self, grads: Sequence[Tensor]) -> float:
        sharded = [g for g in grads if hasattr(g, "to_local")]
        of_heads = [g for g in grads if not hasattr(g, "to_local")]
        square = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        for g in sharded:
            square += torch.linalg.vector_norm(local(g), dtype=torch.float64).square() / copies(
                g, self._division.tensor
            )
        self.ranks.sum(square)
        for g in of_heads:
            square += torch.linalg.vector_norm(g, dtype=torch.float64).square()
        return math.sqrt(float(square))

    def _clip(self, params: Sequence[Tensor], length: float) -> None:
        for p in params:
            if p.grad is not None:
                local(p.grad).mul_(self.settings.grad_clip / (length + 1e-6))

    # ---- whole tensors, one at a time

    def weights(self, group: str) -> Mapping[str, Tensor]:
        """The weights of a group by name, adapters merged in; each is gathered as it is read."""
        own = self._group(group).named_tensors()
        names = [n for n in own if n.rpartition(".")[2] not in ("lora_A", "lora_B")]
        return GatheredTensors(names, lambda name: self._all("whole", group, name, True))

    def _do_whole(self, group: str, name: str, merged: bool) -> Tensor:
        own = self.groups[group].named_tensors()
        base = name.removesuffix(".weight")
        if not merged or f"{base}.lora_A" not in own:
            return whole(own[name]).cpu()
        trunk = self.groups.trunk(group)
        scale = lora.lora_layers(trunk)[base].lora.scale
        product = whole(own[f"{base}.lora_B"]) @ whole(own[f"{base}.lora_A"])
        return product.mul_(scale).add_(whole(own[name])).to(own[name].dtype).cpu()

    def structure(self, group: str) -> Model:
        """The transformer of a group without its weights."""
        return self.groups.structure(group)

    def trunk(self, group: str) -> Model:
        """A copy of a group's transformer on the processor, gathered tensor by tensor."""
        model = skeleton(self.structure(group))
        new = {
            id(p): nn.Parameter(self._all("whole", group, n, False), False) for n, p in model.named_tensors().items()
        }
        for module in model.modules():
            for leaf, p in list(module.named_parameters(recurse=False)):
                setattr(module, leaf, new.get(id(p), p))
        return model.to("cpu")

    def put(self, group: str, tensors: Mapping[str, Any], where: str = "given weights") -> None:
        """As LocalLearner.put, a tensor at a time."""
        own = self._group(group).named_parameters()
        mine = {f"{h}_head" for h in self.groups[group].heads}
        wanted = {n: p for n, p in own.items() if n in tensors or n.split(".")[0] not in mine}
        files.check_tensors(wanted, tensors, where)
        self._set_tensors(group, ((n, torch.as_tensor(tensors[n])) for n in wanted))
        self.changed.add(group)

    def _set_tensors(self, group: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, value in tensors:
            work = partial(self._do_set, group, name, value)
            in_step(self.ranks, "set", self.number, (group, name), work)

    @torch.no_grad()
    def _do_set(self, group: str, name: str, value: Tensor | None = None) -> None:
        p = self.groups[group].named_parameters()[name]
        local(p).copy_(part_of(self._from_first(value, p.shape, p.dtype), p))

    def _from_first(self, value: Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Rank 0's tensor on every rank, on its device."""
        if value is None:
            value = torch.empty(tuple(shape), dtype=dtype)
        value = value.detach().to(self.ranks.device, dtype).contiguous()
        if self.ranks.world > 1:
            dist.broadcast(value, 0)
        return value

    # ---- checkpoints

    def save(self, folder: Any, skip: Collection[str] = ()) -> None:
        """As LocalLearner.save, with one tensor in memory at a time."""
        folder = Path(folder)
        for group in sorted(self.changed):
            if tensors := self._checkpoint_tensors(group, skip):
                shapes = {n: (p.dtype, tuple(p.shape)) for n, p in tensors.items()}
                files.stream_tensors(
                    folder / f"{group}.safetensors", shapes, lambda n, g=group: self._all("whole", g, n, False)
                )
        shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for key, part in self.optimisers.tensors().items():
            params, name, _ = key.split("|")
            p = named_parameters(self.groups, tuple(params.split(",")))[name]
            shapes[key] = part.dtype, tuple(p.shape if part.ndim else ())
        files.stream_tensors(folder / "optimiser.safetensors", shapes, lambda key: self._all("state", key))
        self._write_state(folder, skip)

    def _do_state(self, key: str) -> Tensor:
        params, name, part = key.split("|")
        groups = tuple(params.split(","))
        p = named_parameters(self.groups, groups)[name]
        return whole(like(torch.as_tensor(self.optimisers[groups].state[p][part]), p)).cpu()

    def load(self, folder: Any, skip: Collection[str] = ()) -> None:
        """As LocalLearner.load, with one tensor in memory at a time."""
        folder = Path(folder)
        state = self._read_state(folder, skip)
        self._load_groups(folder, state)
        file = folder / "optimiser.safetensors"
        with files.open_safetensors(file) as shard:
            given: dict[str, Any] = {n: _Shape(shard, n) for n in shard.keys()}  # noqa: SIM118
            made = self.optimisers.checked(given, file)
            self._all("clear")
            for params, states in made.items():
                for name, parts in states.items():
                    for part in parts:
                        key = f"{','.join(params)}|{name}|{part}"
                        value = shard.get_tensor(key)
                        about = (key, value.dtype, tuple(value.shape))
                        work = partial(self._do_set_state, *about, value)
                        in_step(self.ranks, "set_state", self.number, about, work)
        self._all("resume", sorted(state["groups"]), state["steps"], min(state["tokens"], self.tokens))

    def _load_groups(self, folder: Path, state: Mapping[str, Any]) -> None:
        for group in sorted(state["groups"]):
            if own := self._checkpoint_tensors(group, set(state["skipped"])):
                file = folder / f"{group}.safetensors"
                with files.open_safetensors(file) as shard:
                    files.check_tensors(own, {n: _Shape(shard, n) for n in shard.keys()}, file)  # noqa: SIM118
                    self._set_tensors(group, ((n, shard.get_tensor(n)) for n in own))

    def _do_clear(self) -> None:
        self.optimisers.clear()

    def _do_set_state(self, key: str, dtype: torch.dtype, shape: Sequence[int], value: Tensor | None = None) -> None:
        params, name, part = key.split("|")
        groups = tuple(params.split(","))
        p = named_parameters(self.groups, groups)[name]
        value = self._from_first(value, shape, dtype)
        self.optimisers.set_state(groups, name, part, part_of(value, p) if value.ndim else value)

    def _do_resume(self, groups: Sequence[str], steps: int, tokens: int) -> None:
        self.changed, self.groups.steps, self.tokens = set(groups), steps, tokens
        self._pending, self._finite = [], True

    def _check_bases(self, state: Mapping[str, Any], file: Path) -> None:
        for root, ours in self._base_fingerprints().items():
            if state["bases"].get(root) != ours:
                raise BadCheckpoint(
                    f"{file}: its adapters are for other weights than {root} has now; give the model that the run"
                    " started from"
                )

    def _base_fingerprints(self) -> dict[str, str]:
        return dict(self.groups.base_fingerprints)


def as_json(update: Update) -> Any:
    """An update as other ranks get it. Raises BadValue for a term that they cannot know."""
    try:
        return to_json(replace(update, assign=(), where=None, when=None))
    except TypeError as error:
        raise BadValue(f"learner fsdp: {error}; other processes find terms by their names") from None


def _untied(model: Model) -> list[Tensor]:
    """The parameters of a model that only one of its modules has."""
    found: dict[int, list[Tensor]] = {}
    for module in {id(m): m for m in model.modules()}.values():
        for p in module.parameters(recurse=False):
            found.setdefault(id(p), []).append(p)
    return [ps[0] for ps in found.values() if len(ps) == 1]


class _Shape:
    """The shape of a tensor in a file."""

    def __init__(self, shard: Any, name: str) -> None:
        self.shape = torch.Size(shard.get_slice(name).get_shape())


class GatheredTensors(Mapping[str, Tensor]):
    """Tensors by name, each gathered on access, so that they never all exist at once."""

    def __init__(self, names: Sequence[str], gather: Callable[[str], Tensor]) -> None:
        self.names, self.gather = dict.fromkeys(names), gather

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.gather(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def in_step(ranks: Ranks, name: str, number: int, given: Sequence[Any], work: Callable[[], T]) -> T:
    """Order an operation of a learner on all ranks and do rank 0's part.

    Raises RankFailed where a rank is lost, which ends all.
    """
    if ranks.rank:
        raise RuntimeError("only rank 0 gives orders")
    if ranks.broken:
        raise RankFailed("learner: its ranks have ended; go on with --resume")
    try:
        ranks.order(name, number, given)
        return work()
    except SelfteachError:
        raise
    except RuntimeError as error:
        if out_of_memory(error):
            ranks.broken = True
            ranks.kill()
            raise BadValue(
                "learner: out of memory on rank 0 inside a layer, where the other ranks cannot repeat it; take a lower"
                " --micro-tokens, --recompute or more ranks, and go on with --resume"
            ) from error
        raise ranks.explain(error) from error
    except BaseException:  # Ctrl-C in the middle: the ranks are no longer in step
        ranks.broken = True
        ranks.kill()
        raise
    finally:
        ranks.note(NOTHING)
