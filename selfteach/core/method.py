"""What a method is: stages of slots, updates over weight groups, models; and what it claims."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, Literal, ParamSpec, cast

from .blocks import Block
from .claim import Claim
from .errors import BadValue, unknown
from .hyper_parameters import check_hyper_parameters
from .registry import methods
from .task import Sampling

P = ParamSpec("P")

# what `plan`, `train` and the command line take themselves, so that no hyper-parameter can be given by these names
RESERVED = frozenset(
    {"method", "job", "task", "task_options", "env", "args", "settings", "model", "use", "out", "observer", "resume"}
    | {"train", "test", "test_share", "reward", "reward_weights", "data", "test_data", "tools"}
    | {"config", "set", "json", "help"}
)


@dataclass(frozen=True)
class Term:
    """One term of a loss: coef * sum over the rows of its unit of w * l, with the loss weights w.

    fn            the block of the loss per row: l; or (l, kept), where a mask depends on the current policy; or
                  (l, kept, {name: values}) with metrics. Means of these and of `kept` are logged as <group>/<name>
    on            the loss streams whose rows it reads
    loss_weights  the block that gives w, from the whole optimiser batch; None: the mean over the rows of its unit
    denominator   "planned": w stays as it is; "kept": w is shared among the kept rows, which needs the whole batch
    """

    fn: Block
    on: tuple[str, ...] = ("main",)
    loss_weights: Block | None = None
    coef: float | Block = 1.0
    denominator: Literal["planned", "kept"] = "planned"

    def __post_init__(self) -> None:
        if isinstance(self.on, str):
            object.__setattr__(self, "on", (self.on,))
        if not isinstance(self.fn, Block):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller may pass anything
            raise BadValue(
                "term: its function must be a block with hyper-parameters bound, as in Term(clipped_ratio()), "
                f"not {self.fn!r}"
            )


@dataclass(frozen=True)
class Update:
    """One optimiser's turn: PPO has one or two, Lopti two, BRIDGE three.

    params   weight groups that are trained; columns of other groups are constants
    assign   assigners run just before it, with the current weights
    where    a filter of rows, a block of columns -> bool per token; applied before the loss weights are computed
    when     a block of the history -> bool, whether it is done in this step: warm-up, phase, coin flip
    lr       its learning rate; None: the run's
    reset    its optimiser begins anew in every step: moments and step counts are dropped
    """

    params: tuple[str, ...]
    terms: tuple[Term, ...]
    assign: tuple[Block, ...] = ()
    where: Block | None = None
    epochs: int = 1
    minibatches: int = 1
    lr: float | Block | None = None
    when: Block | None = None
    reset: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.params, str):
            object.__setattr__(self, "params", (self.params,))
        if self.epochs < 1 or self.minibatches < 1:
            raise BadValue(
                f"update: epochs and minibatches must be at least 1, not {self.epochs} and {self.minibatches}"
            )


@dataclass(frozen=True)
class Stage:
    """One setting of the five slots, and how long it lasts.

    groups   groups that a step learns from; `rollouts` episodes in each
    until    steps that it lasts: a number, or a block of the history -> bool; None: the run's number of steps
    staleness  versions by which its rollouts may run ahead of learning (loop/run_ahead.py), unless the run says
    sync     updates between two deliveries of weights to the engine: above 1, rollouts are up to sync - 1 updates
             off-policy
    sampler  a block of the weights that it trains (`weights` by name; step, steps, seed) -> those that the engine
             samples with instead, by name; None: the engine samples with the learner's. Evaluations are without it
    data     True: its programs only read data, so no engine is built and no reward is called
    enter    weight groups copied as it begins: {"ref": "policy"}
    reset    weight groups whose optimisers begin anew as it begins: their moments and step counts are dropped
    """

    select: Block
    programs: Mapping[str, Block]
    reward: tuple[Block, ...]
    credit: tuple[Block, ...]
    updates: tuple[Update, ...]
    name: str = "main"
    groups: int = 16
    rollouts: int = 8
    sampling: Sampling = Sampling()
    staleness: int = 0
    sync: int = 1
    sampler: Block | None = None
    until: int | Block | None = None
    data: bool = False
    enter: Mapping[str, str] = field(default_factory=dict[str, str])
    reset: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.reset, str):
            object.__setattr__(self, "reset", (self.reset,))
        if self.sync < 1:
            raise BadValue(f"stage {self.name}: sync must be at least 1 update between deliveries, not {self.sync}")
        if self.sampler is not None and self.sync > 1:
            raise BadValue(
                f"stage {self.name}: {self.sampler.name} changes what the engine samples with in every step, so the"
                f" weights must be delivered in every step too; set sync to 1, not {self.sync}"
            )
        if self.staleness < 0:
            raise BadValue(f"stage {self.name}: staleness must be at least 0, not {self.staleness}")
        if self.groups < 0 or self.rollouts < 1:
            raise BadValue(
                f"stage {self.name}: groups must be at least 0, and rollouts at least 1, not {self.groups} and"
                f" {self.rollouts}"
            )


@dataclass(frozen=True)
class WeightSpec:
    """A named group of parameters, which several models may share.

    source  start (the run's model) | new:head (fresh, for a head) | a path | another group to copy
    follow  the group that it tracks: every `every` steps, weights += rate * (theirs - weights), so 1 is a copy
    """

    source: str = "start"
    follow: str | None = None
    rate: float = 1.0
    every: int = 1


@dataclass(frozen=True)
class ModelRole:
    """One forward pass: weight groups put together.

    A head other than the vocabulary's is in the last of these groups.
    """

    weights: tuple[str, ...] = ("policy",)
    heads: tuple[str, ...] = ("vocab",)


@dataclass(frozen=True)
class Method:
    """A published method as a value: a short sequence of stages, the weight groups that they train, and the models.

    The reference model `ref` is declared in every method and built only if something reads it.

    decode  decode programs, by which the trained policy is evaluated besides the stage's own
    repeat  how often the sequence of stages is run
    quantise  a block of a projection's `weight` -> what a number format leaves of it, of which the model that the run
              starts from is made; None: as it is
    """

    stages: tuple[Stage, ...]
    weights: Mapping[str, WeightSpec] = field(default_factory=lambda: {"policy": WeightSpec(), "ref": WeightSpec()})
    models: Mapping[str, ModelRole] = field(
        default_factory=lambda: {"policy": ModelRole(("policy",)), "ref": ModelRole(("ref",))}
    )
    tools: Mapping[str, Block] = field(default_factory=dict[str, Block])
    decode: Mapping[str, Block] = field(default_factory=dict[str, Block])
    repeat: int = 1
    quantise: Block | None = None
    name: str = ""
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if twice := next((n for n in names if names.count(n) > 1), ""):
            raise BadValue(
                f"method {self.name or 'without a name'}: two stages are called {twice!r}, and what blocks store is by"
                " that name; give each its own"
            )

    @property
    def stage(self) -> Stage:
        """The last stage, which most methods have alone."""
        return self.stages[-1]

    def eval_program(self, stage: Stage) -> Block:
        """The program that a policy is evaluated by: its own decoder (`own_decoder`), else the stage's program.

        Of a data stage, whose program reads what is given, that of the last stage that samples.
        """
        if (own := self.own_decoder()) is not None:
            return self.decode[own]
        return (stage if not stage.data else next(s for s in reversed(self.stages) if not s.data)).programs["main"]

    def own_decoder(self) -> str | None:
        """The name of the decoder that a policy is evaluated by, whatever it is trained with: `main`, or the first of a
        method that never samples. None: it is evaluated by the program of its training.
        """
        if "main" in self.decode:
            return "main"
        return None if any(not stage.data for stage in self.stages) else next(iter(self.decode), None)

    def replace(self, stage: int = -1, **change: Any) -> Method:
        """The method with some slots of one stage changed. Raises UnknownName for what a stage does not have."""
        known = [f.name for f in fields(Stage)]
        for name in change:
            if name not in known:
                raise unknown("slot of a stage", name, known)
        stages = list(self.stages)
        stages[stage] = replace(stages[stage], **change)
        return replace(self, stages=tuple(stages))

    def with_reward(self, reward: Block, instead_of: str = "exact_match", required: bool = True) -> Method:
        """The method with another reward wherever its stages have the one called `instead_of`, also inside others.

        Raises BadValue for a method that has none: what it is rewarded for is part of what it is. Where that is not
        `required` it is given back as it is.
        """
        stages = [
            replace(s, reward=tuple(part.substitute(instead_of, reward) for part in s.reward)) for s in self.stages
        ]
        if required and tuple(stages) == self.stages and str(reward) != f"{instead_of}()":
            raise BadValue(
                f"method {self.name}: has no reward {instead_of} that could be replaced; its rewards are"
                f" {', '.join(str(p) for s in self.stages for p in s.reward) or 'none'}"
            )
        return replace(self, stages=tuple(stages))

    def override(self, **change: Any) -> Method:
        """The method with weights, models, tools or decode programs added or replaced."""
        merged: dict[str, Any] = {
            n: {**getattr(self, n), **v} if isinstance(v, Mapping) else v for n, v in change.items()
        }
        return replace(self, **merged)

    def table(self, full: bool = False) -> list[tuple[str, str]]:
        """(place, value) rows, in reading order: what `print` shows and what a diff compares.

        full: with the stage and the number of the update named also where there is one alone.
        """
        rows: list[tuple[str, str]] = []
        for stage in self.stages:
            rows += [
                (f"{stage.name}.{place}" if full or len(self.stages) > 1 else place, value)
                for place, value in _rows(stage, full)
            ]
        for name in ("weights", "models", "tools", "decode"):
            rows += [(f"{name}.{k}", _text(v)) for k, v in getattr(self, name).items()]
        rows += [("quantise", str(self.quantise))] if self.quantise else []
        return [*rows, ("repeat", str(self.repeat))] if self.repeat > 1 else rows

    def diff(self, other: Method) -> list[tuple[str, str | None, str | None]]:
        """(place, here, there) of every row that differs."""
        a, b = dict(self.table()), dict(other.table())
        return [(place, a.get(place), b.get(place)) for place in {**a, **b} if a.get(place) != b.get(place)]

    def __str__(self) -> str:
        rows = [
            ("method", self.name + (f"({', '.join(f'{k}={v!r}' for k, v in self.args.items())})" if self.args else "")),
            *self.table(),
        ]
        wide = max(len(p) for p, _ in rows)
        return "\n".join(f"{place:<{wide}}  {value}" for place, value in rows)


def _rows(stage: Stage, full: bool = False) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = [("select", str(stage.select))]
    rows += [(f"program.{name}", str(block)) for name, block in stage.programs.items()]
    rows += [(f"reward.{i}", str(block)) for i, block in enumerate(stage.reward)]
    rows += [(f"credit.{i}", str(block)) for i, block in enumerate(stage.credit)]
    for u, update in enumerate(stage.updates):
        at = f"update.{u}" if full or len(stage.updates) > 1 else "update"
        rows.append((f"{at}.params", ", ".join(update.params)))
        for t, term in enumerate(update.terms):
            coef = "" if term.coef == 1.0 else f"{term.coef} * "
            on = "" if term.on == ("main",) else f" on {', '.join(term.on)}"
            kept = "" if term.denominator == "planned" else " over the kept rows"
            rows.append((f"{at}.term.{t}", f"{coef}{term.fn}{on} by {term.loss_weights or 'its mean'}{kept}"))
        for name in ("assign", "where", "epochs", "minibatches", "lr", "when", "reset"):
            value = getattr(update, name)
            if value is True or value not in ((), None, 1, False):
                rows.append((f"{at}.{name}", _text(value)))
    for name in ("groups", "rollouts", "sampling", "staleness", "sync", "sampler", "until", "data", "enter", "reset"):
        value = getattr(stage, name)
        if value not in (None, {}, (), 0, False) and (name, value) != ("sync", 1):
            rows.append((name, _text(value)))
    return rows


def _text(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, Block):
        changed = [f.name for f in fields(value) if getattr(value, f.name) != _default(f)]
        return f"{type(value).__name__}({', '.join(f'{n}={_text(getattr(value, n))}' for n in changed)})"
    if isinstance(value, tuple):
        return "(" + ", ".join(_text(v) for v in cast("tuple[Any, ...]", value)) + ")"
    return str(value)


def _default(f: Any) -> Any:
    return f.default_factory() if callable(f.default_factory) else f.default


@functools.cache
def _parameters(build: Callable[..., Method]) -> Mapping[str, inspect.Parameter]:
    """The arguments of a method's function, whose annotations are read once."""
    return inspect.signature(build, eval_str=True).parameters


@dataclass(frozen=True)
class Home:
    """The task that a method runs on where none is named: its options, and how many steps (0: the task's default)."""

    task: str
    steps: int = 0
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class MethodEntry(Generic[P]):
    """A registered method: called with hyper-parameters it builds the Method; the rest says where it comes from.

    paper      the arXiv number, or words where there is none
    catalogue  its card or cards
    ignores_reward  why its update does not follow the reward that it is given; empty: it does
    home       the task that it runs on where none is named; None: that of its claim
    claim      what the paper says will happen, set at the end of the method's file: `grpo.claim = Claim(...)`
    """

    name: str
    build: Callable[P, Method]
    family: str
    paper: str = ""
    catalogue: tuple[int, ...] = ()
    ignores_reward: str = ""
    home: Home | None = None
    claim: Claim | None = None

    @property
    def experiments(self) -> Mapping[str, Claim]:
        """What else its paper says, each a claim that is measured by itself (`reproduce METHOD --full`), by name.

        They stand in `EXPERIMENTS` of the file NAME_experiments.py beside the method's, where there is one.
        """
        package = self.build.__module__.rpartition(".")[0]
        beside = f"{package}.{self.name}_experiments"
        return vars(import_module(beside))["EXPERIMENTS"] if package and find_spec(beside) else {}

    def with_experiment(self, name: str) -> MethodEntry[P]:
        """The method with one of its experiments in the place of its claim. Raises UnknownName."""
        if name not in self.experiments:
            raise unknown(f"experiment of {self.name}", name, self.experiments)
        return replace(self, claim=self.experiments[name])

    @property
    def doc(self) -> str:
        """The function's docstring."""
        return inspect.getdoc(self.build) or ""

    @property
    def hyper_parameters(self) -> dict[str, inspect.Parameter]:
        """The function's own arguments."""
        return dict(_parameters(self.build))

    def __call__(self, *args: P.args, **values: P.kwargs) -> Method:
        """The method with these hyper-parameters.

        Raises UnknownName for others, BadValue for positional ones and for values that are of another kind, not finite
        or out of range (`core.hyper_parameters`), UserCodeFailed with the place for what the function raises besides.
        """
        from .user_code import user_code  # asyncio, which listing methods need not wait for

        if args:
            raise BadValue(f"method {self.name}: hyper-parameters are given by name")
        for name in values:
            if name not in self.hyper_parameters:
                raise unknown(f"hyper-parameter of {self.name}", name, self.hyper_parameters)
        check_hyper_parameters(f"method {self.name}", self.hyper_parameters, values)
        with user_code(f"method {self.name}"):
            made = self.build(**values)  # pyright: ignore[reportCallIssue]
        return replace(made, name=self.name, args=values)


def method(
    family: str,
    paper: str = "",
    catalogue: int | tuple[int, ...] = (),
    name: str | None = None,
    ignores_reward: str = "",
    home: Home | None = None,
) -> Callable[[Callable[P, Method]], MethodEntry[P]]:
    """Register a function as a published method. Its arguments, all with defaults, are the hyper-parameters.

    paper: the arXiv number, or words where there is none. catalogue: its card or cards. ignores_reward: why its update
    does not follow the reward that it is given; empty: it does. home: the task that it runs on where none is named;
    None: that of its claim.
    """

    def register(fn: Callable[P, Method]) -> MethodEntry[P]:
        own = name or fn.__name__
        for p in inspect.signature(fn).parameters.values():
            if p.default is p.empty:
                raise BadValue(f"method {own}: hyper-parameter {p.name!r} needs a default")
            if p.name in RESERVED:
                raise BadValue(
                    f"method {own}: {p.name!r} is an argument of every run; call the hyper-parameter otherwise"
                )
        cards = (catalogue,) if isinstance(catalogue, int) else tuple(catalogue)
        entry = MethodEntry(own, fn, family, paper, cards, ignores_reward, home)
        functools.update_wrapper(entry, fn)  # so that help() and inspect show the function
        return methods.add(own, entry)

    return register
