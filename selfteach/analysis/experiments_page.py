"""The page of what a method's paper shows beside its claim: each experiment with its checks, costs and pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from ..core.claim import Claim
from ..core.regime import claim_home
from .claim_curves import draw_curves
from .claim_results import corrected_since, is_decided, read_experiments, read_result
from .claim_section import claim_section, formatted_place
from .curves import COLOURS, plot_style, save_figure
from .figures import markdown

OF_SAMPLES = re.compile(r"^(pass|maj)@(\d+)$")


class PowerFit(NamedTuple):
    """pass@k = exp(a k^b), a and b below 0, and its mean absolute error on the points that it was fitted to."""

    a: float
    b: float
    error: float

    def at(self, k: float) -> float:
        """The value at k samples."""
        return math.exp(self.a * k**self.b)


def fit_power(points: Mapping[int, float]) -> PowerFit | None:
    """The line through log(-log pass@k) over log k: Brown et al. 2024 (2407.21787, section 3.1).

    points: k -> pass@k; those of 0 and 1 are left out. None where fewer than three are left.

    >>> fit = fit_power({k: math.exp(-2 * k**-0.5) for k in (1, 4, 16, 64)})
    >>> round(fit.a, 6), round(fit.b, 6), round(fit.error, 6)
    (-2.0, -0.5, 0.0)
    """
    known = {k: v for k, v in points.items() if 0 < v < 1}
    if len(known) < 3:
        return None
    b, intercept = np.polyfit(np.log(list(known)), np.log(-np.log(list(known.values()))), 1)
    fit = PowerFit(-math.exp(intercept), float(b), 0.0)
    return fit._replace(error=fmean(abs(fit.at(k) - v) for k, v in known.items()))


def curve_of_samples(arm: Mapping[str, Any], kind: str) -> dict[int, float]:
    """k -> pass@k or maj@k after training, a mean over seeds; only what all seeds have. kind: pass or maj."""
    runs = [run["after"] for run in arm["seeds"].values()]
    found = {int(m[2]): name for run in runs[:1] for name in run if (m := OF_SAMPLES.match(name)) and m[1] == kind}
    return {k: fmean(r[n] for r in runs) for k, n in sorted(found.items()) if all(r.get(n) is not None for r in runs)}


def has_samples(result: Mapping[str, Any]) -> bool:
    """Whether its runs were sampled so often that there is a curve over samples."""
    return any(len(curve_of_samples(arm, "pass")) > 4 for arm in result["arms"].values())


def draw_samples(result: Mapping[str, Any], file: Path) -> Path:
    """Write what more samples find: pass@k (with its power law) and maj@k over k, and pass@k over tokens, by arm.

    Raises BadValue where matplotlib is not installed.
    """
    with plot_style() as plt:
        figure, (left, right) = plt.subplots(1, 2, figsize=(12.0, 4.0), sharey=True, layout="constrained")
        for n, (name, arm) in enumerate(result["arms"].items()):
            colour = COLOURS[n % len(COLOURS)]
            passed, voted = curve_of_samples(arm, "pass"), curve_of_samples(arm, "maj")
            tokens = fmean(run["after"]["length"] for run in arm["seeds"].values())
            left.plot([*passed], [100 * v for v in passed.values()], "o", color=colour, markersize=4, label=name)
            if fit := fit_power(passed):
                left.plot([*passed], [100 * fit.at(k) for k in passed], "-", color=colour, linewidth=1)
            left.plot([*voted], [100 * v for v in voted.values()], "x--", color=colour, markersize=4, linewidth=1)
            right.plot(
                [tokens * k for k in passed], [100 * v for v in passed.values()], "o-", color=colour, markersize=3
            )
        left.set(
            title="pass@k (dots; line: exp(a k^b)) and vote (crosses)", xlabel="samples k", ylabel="%", xscale="log"
        )
        right.set(title="pass@k over what it costs", xlabel="tokens of k samples", xscale="log")
        left.legend()
        return save_figure(figure, file)


def write_experiments(
    name: str, experiments: Mapping[str, Claim], folders: Iterable[str | Path], file: Path, docs: str | None = None
) -> Path:
    """Write a method's experiments as a page, and their pictures beside it.

    experiments  all of its, in their order; those without a result are named as not measured
    docs         where ledger.md and regimes.md are, from the page, such as `../`; None: they are not linked to

    Raises OSError where it cannot be written, BadValue where matplotlib is not installed.
    """
    folders = list(folders)
    found = read_experiments(name, folders)
    rows = [
        [f"[{n}](#{n})", r["claim"]["because"], f"**{r['verdict']}**", formatted_place(r)]
        if (r := found.get(n))
        else [n, claim.because, "not measured yet", f"`{claim.regime}`, {claim_home(claim)[1]} steps"]
        for n, claim in experiments.items()
    ]
    parts = [
        f"# What else the paper of {name} shows\n\n{main_claim(name, folders, docs)}\n\nEach experiment changes one"
        " thing of the method, or one thing about how it is measured, and is judged as claims are."
        f" `selfteach reproduce {name} --full` runs them. A method stands with what it was given; all else is its"
        " default. Figures are means over seeds, before training → after.\n\n",
        markdown(["experiment", "what the paper says", "here", "measured on"], rows),
    ]
    if missing := [n for n in experiments if n not in found]:
        command = f"`selfteach reproduce {name} --experiment NAME`"
        parts.append(f"\nNot measured yet, with nothing said of what they come to: {', '.join(missing)} ({command}).\n")
    for experiment in [n for n in experiments if n in found]:
        r = found[experiment]
        pictures: list[str] = []
        if has_samples(r):
            pictures.append(draw_samples(r, file.parent / f"{name}.{experiment}.samples.png").name)
        if r["steps"]:
            pictures.append(draw_curves(r, file.parent / f"{name}.{experiment}.png").name)
        parts.append(claim_section(r, experiment, docs=docs))
        parts += [f"\n![{experiment}, by arm]({picture})\n" for picture in pictures]
        parts += _fits(r) if has_samples(r) else []
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(parts), encoding="utf-8")
    return file


def main_claim(name: str, folders: Sequence[str | Path], docs: str | None) -> str:
    """A sentence on the method's own claim: where it stands, what it says and what became of it."""
    result = read_result(name, folders)
    if result is None:
        return f"Its main claim is not measured yet: `selfteach reproduce {name}`."
    decided = is_decided(result)
    if docs is not None:
        place = f"[the ledger]({docs}ledger.md#{name if decided else 'to-be-measured-again'})"
    else:
        place = f"[{name}.json](../{name}.json)"
    if decided:
        came = f"**{result['verdict']}** ({formatted_place(result)})"
    else:
        came = f"to be measured again ({corrected_since(result) or 'first edition'})"
    return f"Its main claim is in {place}: {result['claim']['because']}. It came to: {came}."


def _fits(r: Mapping[str, Any]) -> list[str]:
    fits = {arm: fit_power(curve_of_samples(found, "pass")) for arm, found in r["arms"].items()}
    rows = [[f"`{arm}`", f"{f.a:.3f}", f"{f.b:.3f}", f"{100 * f.error:.2f}"] for arm, f in fits.items() if f]
    return ["\n", markdown(["arm", "a", "b", "mean error of exp(a k^b), points"], rows)]
