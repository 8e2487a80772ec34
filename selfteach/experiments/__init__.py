"""Experiments of many runs: methods compared over seeds, claims reproduced, and regimes measured.

arms: the two sides of an experiment, and what they differ in; runs: many runs at once, from the cache of finished ones;
compare, side_by_side, tuning, reproduce and admission: the experiments. Finished runs are cached (`run_cache`), so that
an interrupted experiment continues, and two claims with the same baseline share its runs.
"""

from .admission import measure_regime
from .arms import Arm, ArmDifference, arm_differences, claim_arms, regime_config
from .compare import compare
from .reproduce import reproduce, result_file
from .side_by_side import FAMILIES, side_by_side
from .tuning import tune

__all__ = [
    "FAMILIES",
    "Arm",
    "ArmDifference",
    "arm_differences",
    "claim_arms",
    "compare",
    "measure_regime",
    "regime_config",
    "reproduce",
    "result_file",
    "side_by_side",
    "tune",
]
