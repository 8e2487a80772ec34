"""What the events of runs say, as lines and bars of a view."""

from __future__ import annotations

from dataclasses import dataclass, field

from .view import Event, View

RE_RENDERED = "rollout/re_rendered/"


@dataclass
class Progress:
    """An observer that shows the events of runs in a view: warm start, steps, evaluations."""

    view: View
    accuracy: float | None = None
    reward: float | None = None  # held out, of the user's own
    arm: str = ""  # of an experiment: name and seed of the run in progress
    budget: int | None = None  # of sampled tokens, where that ends the run
    warned: set[str] = field(default_factory=set[str])  # rules of which a line was shown

    def __call__(self, event: Event) -> None:
        """Show one event, by the method named `_` and its kind; an event without such a method is not shown."""
        if "run" in event:  # one of several at once
            self.arm = f"{event['run']}: "
        if self.view.update(event):
            return
        show = getattr(self, f"_{event['event']}", None)
        if show:
            show(event)

    def _arm(self, e: Event) -> None:
        self.arm = f"{e['arm']} seed {e['seed']}: "
        self.accuracy = self.reward = None
        self.view.line(
            f"[{e['number']}/{e['total']}] {e['arm']}, seed"
            f" {e['seed']}{': finished before, read back' if e['reused'] else ''}"
        )

    def _differences(self, e: Event) -> None:
        for arm, rows in e["arms"].items():
            for d in rows:
                why = {"idea": "the idea", "explained": d["because"], "unexplained": "not explained"}[d["kind"]]
                self.view.line(f"{arm} differs in {d['row']}: {d['other']}; self: {d['own']} ({why})")

    def _look(self, e: Event) -> None:
        self.arm = ""
        self.view.line(f"after {e['seeds']} seeds: {e['verdict']}")

    def _part(self, e: Event) -> None:
        self.arm = ""
        self.view.line(f"{e['part']} is measured: {e['why']}")

    def _out_of_time(self, e: Event) -> None:
        self.view.line(f"{e['hours']:g} hours are spent; the same command goes on from here")

    def _worker_died(self, e: Event) -> None:
        self.view.line(f"{e['run']}: its process died ({e['why']}){'; it is tried once more' if e['again'] else ''}")

    def _waiting(self, e: Event) -> None:
        self.view.line(f"waiting for another process that does the same run ({e['folder']})")

    def _source(self, e: Event) -> None:
        if not self.arm:
            about = ", ".join(
                f"{k} {v}" for k, v in e.items() if k not in ("event", "task") and isinstance(v, int | float | str)
            )
            self.view.line(f"task {e['task']}: {about}")

    def _indexing(self, e: Event) -> None:
        self.view.bar(f"{self.arm}{e['what']}", e["done"], e["total"])

    def _note(self, e: Event) -> None:
        if not self.arm:
            self.view.line(e["text"])

    def _warm_found(self, e: Event) -> None:
        if not self.arm:
            self.view.line("warm start: read from the cache")

    def _warm_step(self, e: Event) -> None:
        loss = f"loss {e['policy/loss']:.3f}" if e.get("policy/loss") is not None else ""
        self.view.bar(f"{self.arm}warm start", e["step"] + 1, e["steps"], loss)

    def _start(self, e: Event) -> None:
        self.budget = e.get("budget")
        if not self.arm or e["resumed"]:
            about = e.get("model", {})
            size = f", model of {about['parameters'] / 1e6:.2f} M parameters" if "parameters" in about else ""
            size += f", frozen, and {about['adapters'] / 1e6:.2f} M in adapters" if "adapters" in about else ""
            again = f": continues after step {e['step']}" if e["resumed"] else ""
            self.view.line(f"run {e['folder']}{again}{size}")
            if e.get("memory") and not self.arm:
                self.view.line(f"memory: {e['memory']}")
        self._kernels(e)
        if not self.arm and (backend := e.get("model", {}).get("backend")):
            kind = e["model"]["kind"]
            self.view.line(
                f"model {kind}: not one of selfteach's own families, so it runs through {backend}; sampling and"
                " learning are slower"
            )

    def _kernels(self, e: Event) -> None:
        by_torch = {k: how for k, how in e.get("kernels", {}).items() if how.startswith("torch: ")}
        if by_torch and not self.arm:
            whys = "; ".join(dict.fromkeys(how.removeprefix("torch: ") for how in by_torch.values()))
            self.view.line(f"kernels: {', '.join(by_torch)} computed by torch, slower ({whys})")

    def _learning(self, e: Event) -> None:
        self.view.bar(f"{self.arm}learning: step {e['step'] + 1}, updates", e["done"], e["total"])

    def _measuring(self, e: Event) -> None:
        when = {"start": "before", "end": "after", "now": "now"}.get(e["when"], e["when"])
        self.view.bar(f"{self.arm}measuring {when}: {e['what']}", e["done"], e["total"])

    def _final_eval(self, e: Event) -> None:
        figures = e["figures"]
        self.accuracy, self.reward = figures.get("greedy"), figures.get("reward_greedy")
        if e["when"] != "start" or self.arm:
            return
        if figures.get("reward") is not None:
            self.view.line(f"before: reward {figures['reward_greedy']:.3g} greedy, {figures['reward']:.3g} sampled")
        if figures.get("accuracy") is not None:
            self.view.line(
                f"before: greedy {100 * (figures.get('greedy') or 0):.1f} %, sampled {100 * figures['accuracy']:.1f} %"
            )

    def _eval(self, e: Event) -> None:
        self.accuracy, self.reward = e.get("accuracy"), e.get("reward")

    def _step(self, e: Event) -> None:
        summary = step_summary(e, self.accuracy, self.reward)
        if self.budget:
            self.view.bar(
                f"{self.arm}tokens",
                min(self.budget, e["tokens/total"]),
                self.budget,
                f"step {e['step'] + 1}, {summary}",
            )
        else:
            self.view.bar(f"{self.arm}steps", e["step"] + 1, e["steps"], summary)

    def _stopping(self, e: Event) -> None:
        self.view.line("stopping after this step (Ctrl-C once more stops at once)")

    def _notice(self, e: Event) -> None:
        self.view.line(f"step {e['step']}: {e['text']}")

    def _warning(self, e: Event) -> None:
        if not self.arm and e["rule"] not in self.warned:  # the runs of an experiment have theirs in the log
            self.warned.add(e["rule"])
            self.view.line(warning_line(e))

    def _warm_stopping(self, e: Event) -> None:
        self.view.line("stopping; an unfinished warm start is not saved")

    def _not_finite(self, e: Event) -> None:
        self.view.line(f"step {e['step']}: {e['why']}")


def step_summary(e: Event, accuracy: float | None = None, reward: float | None = None) -> str:
    """The main metrics of a step as text; accuracy and reward: held out."""
    out: list[str] = []
    if e.get("reward/mean") is not None:
        out.append(f"reward {e['reward/mean']:.2f}")
    elif e.get("policy/loss") is not None:
        out.append(f"loss {e['policy/loss']:.3f}")
    if reward is not None:
        out.append(f"held-out reward {reward:.2f}")
    if accuracy is not None:
        out.append(f"held-out {100 * accuracy:.0f} %")
    if e.get("rollout/length_mean"):
        out.append(f"length {e['rollout/length_mean']:.0f}")
    if e.get("rollout/tool_calls_mean"):
        out.append(f"calls {e['rollout/tool_calls_mean']:.1f}")
    if re_rendered := {k.removeprefix(RE_RENDERED): v for k, v in e.items() if k.startswith(RE_RENDERED)}:
        out.append("re-rendered " + ", ".join(f"{n:.0f} ({why})" for why, n in re_rendered.items()))
    if e.get("policy/logprob_mismatch_mean") is not None:
        out.append(f"mismatch {e['policy/logprob_mismatch_mean']:.0e}")
    if e.get("tokens_per_s"):
        out.append(f"{e['tokens_per_s']:,.0f} tok/s")
    return ", ".join(out)


def warning_line(e: Event) -> str:
    """A warning of a run's health as a line."""
    return f"step {e['step']}: warning: {e['text']}; try: {e['advice']}"
