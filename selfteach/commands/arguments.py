"""Reading arguments: a parser whose mistakes are one line with the nearest right names, and typed values for options and KEY=VALUE."""

from __future__ import annotations

import argparse
import ast
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, NoReturn

from ..core.errors import BadValue, nearest, unknown

# What the common settings mean.
SETTINGS = {
    "seed": "of everything drawn; the same seed gives the same weights, bit for bit",
    "steps": "steps of the loop (default: what the method's claim says on its own task)",
    "lr": "peak learning rate (default: the task's for tiny models, 1e-5 for real ones, ten times that for adapters)",
    "decay": "how the learning rate falls",
    "warmup": "steps over which the learning rate rises",
    "grad_clip": "largest global norm of a gradient",
    "weight_decay": "AdamW's weight decay",
    "device": "auto (a GPU where there is one), cpu, cuda or cuda:N",
    "dtype": "precision of the trunk's products; weights and moments stay float32 (auto: bfloat16 on a GPU, float32 on a CPU)",
    "optimiser": "adamw8bit: moments in 8 bits, by bitsandbytes (selfteach[int8])",
    "recompute": "compute layers again on the way back instead of keeping them: less memory, a third more work",
    "micro_tokens": "tokens of a micro-batch: memory and speed, never the result; halved where memory runs out",
    "threads": "threads of matrix products; the same number gives the same bits (default: as many as the machine has cores)",
    "slots": "sequences that the engine draws at once",
    "engine_dtype": "of the engine's weights and cache; in bfloat16 the sampler is off the learner by its rounding (auto: bfloat16 on a GPU)",
    "max_tokens": "longest turn (default: the task's own)",
    "context": "tokens of a whole context (default: the model's own, or 2048 where that is more)",
    "eval_every": "steps between measurements on held-out tasks; 0: none",
    "eval_tasks": "held-out tasks in each of them",
    "checkpoint_every": "steps between checkpoints",
    "keep": "checkpoints kept",
    "unscored": "share of episodes without a verdict at which the run stops",
    "gap": "mean gap in nats between sampler and learner at which the run stops",
    "tool_seconds": "deadline of a tool call",
    "reward_seconds": "deadline of a reward",
    "lora_rank": "train adapters of this rank (LoRA) instead of all weights",
    "lora_alpha": "adapters count alpha / rank (default: twice the rank)",
    "lora_targets": "linear layers that have adapters: q_proj,v_proj ..., or all-linear",
    "lora_dropout": "share of an adapter's inputs left out in learning (default: 0, or as --adapter's own file says)",
    "lora_rslora": "adapters count alpha / sqrt(rank) instead",
    "adapter": "go on from the adapter in this folder, in peft's layout; --model is then its base",
}
WARM = {
    "steps": "supervised steps on the task's demonstrations before RL; 0: none",
    "batch": "demonstrations in each of them",
    "lr": "their learning rate",
    "seed": "of the fresh weights and the warm start",
}
SURVEY = {
    "tasks": "held-out tasks measured before and after",
    "deep": "of these, how many are drawn k times",
    "k": "samples of each for pass@k; 0: none",
    "ways": "samples of each task for the sampled accuracy",
}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises BadValue, and answers an unknown option with the nearest ones."""

    def __init__(self, command: str, **more: Any):
        super().__init__(
            prog=f"selfteach {command}",
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110),
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            **more,
        )

    def error(self, message: str) -> NoReturn:
        raise BadValue(f"{self.prog}: {message.removeprefix('argument ')}; see {self.prog} --help")

    def read(self, words: Sequence[str], expect: Sequence[str] = ()) -> argparse.Namespace:
        """Parse `words`. What is left over, `expect` aside, is an unknown option or one word too many."""
        given, extra = self.parse_known_args(words)
        for word in expect:
            if word in extra:
                extra.remove(word)
        for word in extra:
            if word.startswith("-"):
                name = word.split("=")[0]
                close = nearest(name.lstrip("-"), [o.lstrip("-") for o in self._option_string_actions if o.startswith("--")])
                hint = close.replace("did you mean ", "did you mean --").replace(", ", ", --").replace(" or ", " or --")
                raise BadValue(f"{self.prog}: no option is called {name}; {hint if hint.startswith('did') else f'see {self.prog} --help'}")
        if extra:
            raise BadValue(f"{self.prog}: {extra[0]!r} is one word too many; see {self.prog} --help")
        return given


def convert(text: str, kind: Any) -> Any:
    """The value of `kind` that `text` spells. Raises ValueError.

    >>> convert("2,4", tuple[int, int]), convert("none", int | None), convert("yes", bool)
    ((2, 4), None, True)
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _either(text, args)
    if origin is Literal:
        for option in args:
            if str(option) == text:
                return option
        raise ValueError(text)
    if kind is bool:
        return {"yes": True, "true": True, "1": True, "on": True, "no": False, "false": False, "0": False, "off": False}[text.lower()]
    if kind is int:
        return int(text) if "e" not in text.lower() else _whole(float(text))
    if kind in (float, str):
        return kind(text)
    if origin in (tuple, list) or kind in (tuple, list):
        items = [w.strip().strip("'\"") for w in text.strip().strip("()[]").split(",") if w.strip()]
        kinds = [args[0] if args else str] * len(items) if not args or args[-1] is Ellipsis or origin is list else list(args)
        if len(kinds) != len(items):
            raise ValueError(text)
        return (origin or kind)(convert(w, k) for w, k in zip(items, kinds, strict=True))
    try:
        return ast.literal_eval(text)
    except SyntaxError:
        return text


def _either(text: str, kinds: Iterable[Any]) -> Any:
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    for kind in kinds:
        try:
            if kind is not type(None):
                return convert(text, kind)
        except (ValueError, KeyError):
            continue
    raise ValueError(text)


def _whole(value: float) -> int:
    if value != int(value):
        raise ValueError(value)
    return int(value)


def described(kind: Any) -> str:
    """What a value of a kind looks like, in words."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if a is type(None) else described(a) for a in args)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (tuple, list):
        return (
            f"values with commas between, each {described(args[0])}"
            if args[-1] is Ellipsis or origin is list
            else f"{len(args)} values with a comma between"
        )
    return {bool: "yes or no", int: "a whole number", float: "a number", str: "text"}.get(kind, "a value")


def reader(kind: Any) -> Callable[[str], Any]:
    """A `type=` for argparse."""

    def read(text: str) -> Any:
        try:
            return convert(text, kind)
        except (ValueError, KeyError, OverflowError):
            raise argparse.ArgumentTypeError(f"must be {described(kind)}, not {text!r}") from None

    return read


def add_typed(group: Any, name: str, kind: Any, help: str, default: Any = None, dest: str | None = None) -> None:
    """One option of a kind; a yes-or-no one can be said as --name, --name no and --no-name."""
    flag, dest = name.replace("_", "-"), dest or name.replace("-", "_")
    text = f"{help} (default: {shown(default)})" if default is not None and "(default" not in help else help
    text = text.replace("%", "%%").strip()
    if kind is bool:
        group.add_argument(f"--{flag}", dest=dest, nargs="?", const=True, type=reader(bool), metavar="yes|no", help=text)
        group.add_argument(f"--no-{flag}", dest=dest, action="store_const", const=False, help=argparse.SUPPRESS)
        return
    literal = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    metavar = "|".join(map(str, literal)) or {int: "N", float: "X", str: "TEXT"}.get(kind, "VALUE")
    group.add_argument(f"--{flag}", dest=dest, type=reader(kind), metavar=metavar, help=text)


def shown(value: Any) -> str:
    """A default as a person would type it."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def add_fields(group: Any, cls: Any, helps: Mapping[str, str], prefix: str = "", only: Iterable[str] | None = None) -> None:
    """An option for each field of a dataclass of settings."""
    hints = typing.get_type_hints(cls)
    for f in fields(cls):
        if only is None or f.name in only:
            default = None if f.default is MISSING else f.default
            add_typed(group, prefix + f.name, hints[f.name], helps.get(f.name, ""), default, dest=f"{prefix}{f.name}".replace("-", "_"))


def kind_of(parameter: inspect.Parameter) -> Any:
    """The kind of a parameter: its annotation, or that of its default where it has none."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return type(parameter.default) if parameter.default is not None else str


def assignments(kind: str, words: Iterable[str], known: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """KEY=VALUE words as typed values. Raises UnknownName with the nearest keys, BadValue for a wrong value."""
    out: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise BadValue(f"{kind}: {word!r} is not KEY=VALUE; there are: {', '.join(known)}")
        if name not in known:
            raise unknown(kind, name, known)
        try:
            out[name] = convert(text, kind_of(known[name]))
        except (ValueError, KeyError):
            raise BadValue(f"{kind}: {name} must be {described(kind_of(known[name]))}, not {text!r}") from None
    return out


def documented(doc: str) -> dict[str, str]:
    """name -> text of the lines `name   text` of a docstring, as blocks and tasks explain their options."""
    out: dict[str, str] = {}
    for line in doc.splitlines()[1:]:
        name, gap, text = line.strip().partition("  ")
        if gap and name.isidentifier():
            out[name] = text.strip()
    return out
