"""Plain data and contracts: what every room of the house speaks in. NumPy only; no torch, no I/O, nothing from the rooms above."""

from .batch import Batch, Column, Example, Segment, gather
from .errors import BadCheckpoint, BadValue, NotFinite, NoVerdict, SelfteachError, Starved, UnknownName, Unproven
from .method import Check, Claim, Entry, Member, Method, Stage, Term, Update, Weights, method
from .part import Epi, Grp, Pair, Part, Seq, Step, Token, Unit, block, holds_back, remembers, vanishes
from .protocols import Completion, Context, Engine, History, Learner
from .registry import task
from .serial import from_json, to_json
from .task import Document, Ref, Request, Sampling, Source, Task
from .tree import Episode, Group, Score, Scores, Trajectory, Tree, Turn

__all__ = [
    "BadCheckpoint",
    "BadValue",
    "Batch",
    "Check",
    "Claim",
    "Column",
    "Completion",
    "Context",
    "Document",
    "Engine",
    "Entry",
    "Epi",
    "Episode",
    "Example",
    "Group",
    "Grp",
    "History",
    "Learner",
    "Member",
    "Method",
    "NoVerdict",
    "NotFinite",
    "Pair",
    "Part",
    "Ref",
    "Request",
    "Sampling",
    "Score",
    "Scores",
    "Segment",
    "SelfteachError",
    "Seq",
    "Source",
    "Stage",
    "Starved",
    "Step",
    "Task",
    "Term",
    "Token",
    "Trajectory",
    "Tree",
    "Turn",
    "Unit",
    "UnknownName",
    "Unproven",
    "Update",
    "Weights",
    "block",
    "from_json",
    "gather",
    "holds_back",
    "method",
    "remembers",
    "task",
    "to_json",
    "vanishes",
]
