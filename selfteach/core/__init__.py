"""Plain data and contracts: what every room of the house speaks in. NumPy only; no torch, no I/O, nothing from the rooms above."""

from .batch import Batch, Column, Example, Segment, gather
from .errors import BadCheckpoint, BadValue, NotFinite, NoVerdict, SelfteachError, Starved, UnknownName, Unproven
from .method import Check, Claim, Entry, Member, Method, Stage, Term, Update, Weights, method
from .part import Epi, Grp, Pair, Part, Seq, Step, Token, Unit, block, remembers, vanishes
from .protocols import Completion, Context, Engine, History, Learner
from .serial import from_json, to_json
from .registry import task
from .task import Document, Ref, Request, Sampling, Source, Task
from .tree import Episode, Group, Score, Scores, Trajectory, Tree, Turn

__all__ = [n for n in dir() if n[0].isupper()] + ["block", "from_json", "gather", "method", "remembers", "task", "to_json", "vanishes"]
