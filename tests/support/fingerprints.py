"""Fingerprints of methods: a few numbers of one step on the hand-made groups, kept in tests/data/fingerprints.json.

`make fingerprints` writes the file anew. Its diff shows which methods a change has touched.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np

from selfteach.core import registry
from support.battery import Study, study_of

FILE = Path(__file__).parents[1] / "data" / "fingerprints.json"


def fingerprint(study: Study) -> dict[str, list[float]]:
    """Of the advantages, each term's loss weights and the gradient of each weight group in one step: [rows, a sum with
    uneven signs, root of the sum of squares], to six digits.
    """
    out = {"advantage": study.batch.get("adv" if "adv" in study.batch else "old_logp")}
    out |= {f"weights {i}": w for i, w in enumerate(study.weights)}
    for group in sorted({n.split("/")[0] for n in study.gradient}):
        parts = [g.flatten().numpy() for n, g in sorted(study.gradient.items()) if n.startswith(f"{group}/")]
        out[f"gradient of {group}"] = np.concatenate(parts)
    return {name: _figures(np.asarray(values, np.float64)) for name, values in out.items()}


def _figures(values: np.ndarray) -> list[float]:
    signed = float(values @ np.cos(np.arange(len(values))))
    return [len(values), *(float(f"{x:.6g}") for x in (signed, math.sqrt(values @ values)))]


@cache
def stored() -> dict[str, dict[str, list[float]]]:
    return json.loads(FILE.read_text())


if __name__ == "__main__":
    rows = [f"{json.dumps(name)}: {json.dumps(fingerprint(study_of(name)))}" for name in registry.methods]
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
