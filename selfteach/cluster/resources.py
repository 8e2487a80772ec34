"""What a run asks a cluster for, as one value: processes of each kind, and the CPUs and GPUs of each process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..core.errors import BadValue, describe
from ..core.extras import optional


class Share(NamedTuple):
    """CPUs and GPUs of one process."""

    cpus: float = 1.0
    gpus: float = 0.0

    @property
    def threads(self) -> int:
        """Threads of its matmuls: as many as whole CPUs, one at least."""
        return max(1, int(self.cpus))

    def __add__(self, other: Any) -> Share:
        return Share(self.cpus + other.cpus, self.gpus + other.gpus)

    def __str__(self) -> str:
        gpus = f" and {self.gpus:g} GPU{'s' * (self.gpus > 1)}" if self.gpus else ""
        return f"{self.cpus:g} CPU{'s' * (self.cpus > 1)}{gpus}"


@dataclass(frozen=True)
class Resources:
    """What a run asks for.

    rollout_workers, worker  how many sample, and the share of each
    ranks, rank              processes of the learner, the first of which is the run itself, and the share of each
    reward_workers, call     processes that call rewards and tools, and the share of each
    colocated                whether rollout workers share their GPUs with the learner, which sleeps while they sample

    Raises BadValue for numbers that do not go together.
    """

    rollout_workers: int = 1
    worker: Share = Share()
    ranks: int = 1
    rank: Share = Share()
    reward_workers: int = 0
    call: Share = Share()
    colocated: bool = False

    def __post_init__(self) -> None:
        for name, gpus in (("gpus_per_worker", self.worker.gpus), ("learner_gpus", self.rank.gpus)):
            if gpus > 1 and gpus != int(gpus):
                raise BadValue(
                    f"{name}: {gpus:g} GPUs; above 1 give a whole number, since Ray divides single GPUs only"
                )
        if not self.colocated:
            return
        if self.rollout_workers % self.ranks and self.ranks % self.rollout_workers:
            raise BadValue(
                f"colocate: {self.rollout_workers} rollout workers do not divide over {self.ranks} processes of the"
                " learner; give as many, or a multiple, by --rollout-workers and --world"
            )
        if self.worker.gpus + self.rank.gpus > 1:
            raise BadValue(
                f"colocate: {self.worker.gpus:g} GPU of a rollout worker and {self.rank.gpus:g} of a learner's process"
                " are more than the one that they share; give --gpus-per-worker 0.5 --learner-gpus 0.5"
            )

    @property
    def bundles(self) -> list[Share]:
        """The shares that are placed: first the learner's, one a rank (colocated: with their rollout workers), then the
        rollout workers', then those of calls.
        """
        out = [self.rank] * self.ranks
        if self.colocated:
            for number in range(self.rollout_workers):
                out[number % self.ranks] += self.worker
        else:
            out += [self.worker] * self.rollout_workers
        return out + [self.call] * self.reward_workers

    def bundle_of_worker(self, number: int) -> int:
        """The bundle of a rollout worker."""
        return number % self.ranks if self.colocated else self.ranks + number

    def bundle_of_call(self, number: int) -> int:
        """The bundle of a process that calls rewards and tools."""
        return self.ranks + (0 if self.colocated else self.rollout_workers) + number

    @property
    def total(self) -> Share:
        """All of it."""
        return Share(sum(b.cpus for b in self.bundles), sum(b.gpus for b in self.bundles))

    def __str__(self) -> str:
        parts = [(self.ranks, "process of the learner", "processes of the learner", self.rank)]
        parts += [(self.rollout_workers, "rollout worker", "rollout workers", self.worker)]
        parts += [(self.reward_workers, "reward worker", "reward workers", self.call)]
        return ", ".join(f"{n} {one if n == 1 else many} of {share}" for n, one, many, share in parts if n)

    def check(self, nodes: Sequence[tuple[str, Share]]) -> None:
        """Raise BadValue where nodes (address, what each has) can never give what is asked for."""
        there = f"{len(nodes)} node{'s' * (len(nodes) != 1)}: " + "; ".join(f"{name} {has}" for name, has in nodes)
        has = Share(sum(n.cpus for _, n in nodes), sum(n.gpus for _, n in nodes))
        for what, option, asked, given in (
            ("GPUs", "gpus", self.total.gpus, has.gpus),
            ("CPUs", "cpus", self.total.cpus, has.cpus),
        ):
            if asked > given + 1e-6:
                raise BadValue(
                    f"cluster: {asked:g} {what} are asked for ({self}), and it has {given:g} ({there}); ask for fewer"
                    f" processes, or less for each (--{option}-per-worker, --learner-{option})"
                )
        for bundle in self.bundles:
            if not any(bundle.cpus <= n.cpus + 1e-6 and bundle.gpus <= n.gpus + 1e-6 for _, n in nodes):
                raise BadValue(f"cluster: no node has {bundle} for one place of {self} ({there}); ask for less of each")


def read_settings(file: str) -> dict[str, Any]:
    """The settings of a cluster in a YAML or JSON file, by their names: `rollout_workers: 4`.

    Raises BadValue for a file that cannot be read, or is no mapping of names.
    """
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadValue(f"cluster_file: {file} cannot be read ({error.strerror})") from None
    except ValueError:
        raise BadValue(f"cluster_file: {file} is no text") from None
    try:
        if path.suffix == ".json":
            found: Any = json.loads(text)
        else:
            found = optional("yaml", "ray", "a cluster's settings in YAML").safe_load(text)
    except (ValueError, RecursionError) as error:
        raise BadValue(f"cluster_file: {file}: {describe(error, 160)}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise BadValue(f"cluster_file: {file}: {describe(error, 160)}") from None
    if not isinstance(found, Mapping) or not all(isinstance(n, str) for n in cast("Mapping[Any, Any]", found)):
        raise BadValue(f"cluster_file: {file} is no mapping of settings; write lines such as `rollout_workers: 4`")
    return {n.replace("-", "_"): v for n, v in cast("Mapping[str, Any]", found).items()}
