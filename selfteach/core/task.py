"""Tasks, task sources, sampling parameters, and rollout requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from .blocks import Block
from .errors import BadValue, unknown


class Ref(NamedTuple):
    """A place in an episode's tree. Replay, start points and scores hold Refs, not copies."""

    episode: str
    node: int
    offset: int = -1  # a token inside the node (-1: its end), since forks may begin inside a turn

    @property
    def name(self) -> str:
        """episode:node, the name of the example of a trajectory that ends here."""
        return f"{self.episode}:{self.node}"


@dataclass(frozen=True, slots=True)
class Task:
    """One task instance: a prompt, its reference answer, and how answers are judged.

    data      what data programs read: a demonstration's completion, pairs, logged episodes
    tags      category, difficulty, hops, hint, solution, steps, paraphrase ...
    verifier  a block of `answer` and `task` that decides whether an answer is right, where that is more than being
              equal to `answer`
    judges    other judges by name: `step` (a block of `step` that returns True, False, or None where there is nothing
              to judge), of two answers, of one
    """

    id: str
    prompt: Any
    answer: Any = None
    data: tuple[Any, ...] = ()
    tags: Mapping[str, Any] = field(default_factory=dict[str, Any])
    verifier: Block | None = None
    judges: Mapping[str, Block] = field(default_factory=dict[str, Block])

    def judge(self, name: str) -> Block:
        """The judge of that name. Raises UnknownName for one that the task does not have."""
        if name not in self.judges:
            raise unknown(f"judge of task {self.id}", name, self.judges)
        return self.judges[name]


@dataclass(frozen=True, slots=True)
class Steering:
    """A vector that is added to the residual stream after a layer, at every state that a sampled token is drawn from.

    These are the states of the context's last token and of all sampled ones but the last; the context before is
    computed as without it.

    layer   the number of the layer, from 0
    vector  as many numbers as the residual stream is wide
    """

    layer: int
    vector: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.layer < 0:
            raise BadValue(f"steering: layer must be at least 0, not {self.layer}")
        object.__setattr__(self, "vector", tuple(map(float, self.vector)))
        if not np.isfinite(self.vector).all():
            raise BadValue("steering: its vector holds numbers that are not finite")


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; stored with every node, so that the learner recomputes log-probabilities under the same
    ones.

    temperature 0 is greedy. top_p 1 and top_k 0 truncate nothing. `max_tokens` None: the task's own limit. A stop
    string ends the turn and stays in it. `record`: quantities to return besides the log-probability. `steering`: a
    vector added to the hidden states; what is sampled so cannot be learned.
    """

    temperature: float | Block = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    record: tuple[str, ...] = ()
    steering: Steering | None = None

    def __post_init__(self) -> None:
        if isinstance(self.temperature, int | float) and not 0 <= self.temperature < 100:
            raise BadValue(f"sampling: temperature must be at least 0, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise BadValue(f"sampling: top_p must be in (0, 1], not {self.top_p}")
        if self.top_k < 0:
            raise BadValue(f"sampling: top_k must be 0 (off) or more, not {self.top_k}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise BadValue(f"sampling: max_tokens must be at least 1, not {self.max_tokens}")

    def replace(self, **change: Any) -> Sampling:
        """A copy with some fields changed."""
        return replace(self, **change)

    @property
    def untruncated(self) -> bool:
        """Whether nothing is truncated (top-p, top-k), so that the learner can recompute log-probabilities."""
        return self.top_p == 1.0 and self.top_k == 0


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A request for `n` episodes of a program on a task: to solve it, propose, judge, demonstrate, reflect."""

    task: Task
    n: int = 1
    program: str = "main"
    key: str | None = None  # the group to join; None: a new one
    help: Mapping[str, Any] = field(default_factory=dict[str, Any])  # hint, instruction, evidence for the program
    sampling: Sampling | None = None
    cause: str | None = None  # key of the group that it was made from: for solvers, that of the proposer


class Document(NamedTuple):
    """One entry of a task's corpus, as a search engine indexes it."""

    title: str
    text: str


class Composed(NamedTuple):
    """A question made from a task's corpus, its answer, and what leads from the answer back to the question's subject:
    pairs of a search query and the document that it finds.
    """

    question: str
    answer: str
    searches: tuple[tuple[str, str], ...]


class Questions(Protocol):
    """How a task phrases and judges questions that are not its own, for methods that generate questions."""

    tested: frozenset[str]  # the task's test questions, which no method may train on

    def prompt(self, question: str) -> str:
        """The prompt of a question, as for the task's own."""
        ...

    def supported(self, question: str, answer: Sequence[str]) -> bool | None:
        """Whether the task's corpus gives a question this answer; None where it cannot say."""
        ...

    def compose(self, draw: np.random.Generator) -> Composed:
        """A question made from the corpus."""
        ...


@dataclass(frozen=True)
class TaskSource:
    """Where tasks come from: what a `@task` function returns. Lazy, seeded, endless; train and test share no question.

    train(i)  the i-th training task, for any i >= 0
    test      the held-out tasks, a fixed list
    demos(i)  the i-th item of the warm start: a Task whose data is (completion text,), or of an episode what was said
              and observed, in turns; None: the task has none
    practice(i)  the i-th item of what comes before them, in the same form: one practice serves all tasks that share it
    experts(i)  the i-th demonstration of an expert, in the same form, which the warm start does not see; None: methods
              that imitate see `demos`
    pairs(i)  the i-th preference pair: a Task whose data is (the preferred completion, the rejected one); None: there
              are none
    words     text to make the tiny model's tokenizer from; `tags` are kept whole in it
    corpus    documents for a search tool; `tools`: name -> Block of a tool that programs may call
    chat      a task -> the messages of its prompt, for a model with a chat template; None: the prompt as the user's
              message
    questions  how questions that are not the task's own are phrased and judged; None: it takes none
    program   what plays this task in place of a method's single turn (an environment's `act`), its judge then stands
              for exact_match; None: the method's own program
    decode    programs by which what plays `program` is measured, `main` in place of it
    files     the user's own files that it was made from
    defaults  settings that this task suggests: max_tokens, model, warm_steps ...; `judge`: the block that judges its
              answers, None where they cannot be judged; `by`: the tag (or tags) by which figures are shown apart;
              `words`: whether answers are names or phrases, of which an evaluation gives F1 beside exact match
    columns   names that the tags of every task have, for rewards that read them
    content   a hash of the data that tasks come from, where that is not code
    within    (longest, count) -> the source without tasks whose prompt has more than `longest` tokens by `count`; None:
              its prompts are short
    """

    name: str
    train: Callable[[int], Task]
    test: Sequence[Task]
    demos: Callable[[int], Task] | None = None
    practice: Callable[[int], Task] | None = None
    experts: Callable[[int], Task] | None = None
    pairs: Callable[[int], Task] | None = None
    words: Callable[[], Iterable[str]] | None = None
    tags: tuple[str, ...] = ()
    corpus: Callable[[], Sequence[Document]] | None = None
    tools: Mapping[str, Block] = field(default_factory=dict[str, Block])
    chat: Callable[[Task], Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    task_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])  # figures of the data: sizes, shares held out
    questions: Questions | None = None
    columns: tuple[str, ...] = ()
    content: str = ""
    within: Callable[[int, Callable[[Any], int]], TaskSource] | None = None
    program: Block | None = None
    decode: Mapping[str, Block] = field(default_factory=dict[str, Any])
    files: tuple[str, ...] = ()

    def without_tag(self, name: str) -> TaskSource:
        """The source whose training and test tasks do not have a tag; itself where that is none of theirs, or a column
        of the rows that it is made of.
        """
        if name in self.columns or not self.test or name not in self.test[0].tags:
            return self
        test = tuple(_untagged(name, task) for task in self.test)
        return replace(self, train=partial(_train_untagged, self.train, name), test=test)


def _untagged(name: str, task: Task) -> Task:
    return replace(task, tags={n: v for n, v in task.tags.items() if n != name})


def _train_untagged(train: Callable[[int], Task], name: str, i: int) -> Task:
    return _untagged(name, train(i))
