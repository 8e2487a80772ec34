"""Plain data and contracts: the values and protocols that all other packages share.

NumPy only; no torch, no I/O, nothing from the packages above.
"""

from .batch import Batch, Column, Example, Segment
from .blocks import (
    Block,
    Epi,
    Grp,
    Pair,
    Seq,
    Step,
    Token,
    Unit,
    block,
    delayed_start,
    logged,
    provides,
    reads_items,
    reads_last_step,
    stateful,
    zero_when,
)
from .claim import Check, Claim, mechanism, outcome, premise, unsorted
from .collate import collate
from .contexts import History, ModelContext, ModelHandle, RewardContext, RolloutContext, TokenPath, own_tokens
from .env import Env
from .errors import (
    BadCheckpoint,
    BadValue,
    EngineMismatch,
    NotFinite,
    NoTrainingData,
    ScoringFailed,
    SelfteachError,
    UnknownName,
)
from .method import Home, Method, MethodEntry, ModelRole, Stage, Term, Update, WeightSpec, method
from .protocols import Completion, Engine, Learner
from .quantity import GroupRows, Quantity, quantity
from .regime import Regime, regime
from .registry import task
from .serial import from_json, to_json
from .task import Composed, Document, Questions, Ref, RolloutRequest, Sampling, Steering, Task, TaskSource
from .tree import Episode, RolloutGroup, Score, Scores, Trajectory, Tree, Turn

__all__ = [
    "BadCheckpoint",
    "BadValue",
    "Batch",
    "Block",
    "Check",
    "Claim",
    "Column",
    "Completion",
    "Composed",
    "Document",
    "Engine",
    "EngineMismatch",
    "Env",
    "Epi",
    "Episode",
    "Example",
    "GroupRows",
    "Grp",
    "History",
    "Home",
    "Learner",
    "Method",
    "MethodEntry",
    "ModelContext",
    "ModelHandle",
    "ModelRole",
    "NoTrainingData",
    "NotFinite",
    "Pair",
    "Quantity",
    "Questions",
    "Ref",
    "Regime",
    "RewardContext",
    "RolloutContext",
    "RolloutGroup",
    "RolloutRequest",
    "Sampling",
    "Score",
    "Scores",
    "ScoringFailed",
    "Segment",
    "SelfteachError",
    "Seq",
    "Stage",
    "Steering",
    "Step",
    "Task",
    "TaskSource",
    "Term",
    "Token",
    "TokenPath",
    "Trajectory",
    "Tree",
    "Turn",
    "Unit",
    "UnknownName",
    "Update",
    "WeightSpec",
    "block",
    "collate",
    "delayed_start",
    "from_json",
    "logged",
    "mechanism",
    "method",
    "outcome",
    "own_tokens",
    "premise",
    "provides",
    "quantity",
    "reads_items",
    "reads_last_step",
    "regime",
    "stateful",
    "task",
    "to_json",
    "unsorted",
    "zero_when",
]
