"""Rewards composed of other rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core import BadValue, Block, Ref, RewardContext, RolloutGroup, Score, Scores, block
from ..core.contexts import PathView, end_to_end, own_tokens
from ..core.protocols import Engine, Tokenizer
from ..core.scoring import Processes, score


@block
async def weighted(
    *, group: RolloutGroup, context: RewardContext, deadline: float, parts: tuple[tuple[float, Block], ...] = ()
) -> Scores:
    """A weighted sum of rewards: weighted(parts=((0.9, exact_match()), (0.1, search_format()))).

    Unknown where any of them is unknown. At a place before the end that only some of them score it is the sum of those.
    """
    scores = [await score(part, [group], context, deadline) for _, part in parts]
    places = dict.fromkeys(at for f in scores for at in f.get("reward", {}))
    return join_scores(scores, lambda values: sum(parts[i][0] * v for i, v in values.items()), places)


@block
async def gate(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    by: Block | None = None,
    then: Block | None = None,
    above: float = 0.0,
) -> Scores:
    """The reward `then` where the reward `by` is greater than `above`, else 0."""
    if by is None or then is None:
        raise BadValue("gate: it needs two rewards; give both, as in gate(by=search_format(), then=exact_match())")
    scores = [await score(by, [group], context, deadline), await score(then, [group], context, deadline)]
    return join_scores(scores, lambda values: values[1] if values[0] > above else 0.0)


@block
async def clip(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    reward: Block | None = None,
    low: float = 0.0,
    high: float = 1.0,
) -> Scores:
    """A reward clipped to [low, high]."""
    if reward is None:
        raise BadValue("clip: it has no reward; give one, as in clip(reward=exact_match(), low=0.0, high=1.0)")
    return join_scores([await score(reward, [group], context, deadline)], lambda values: min(max(values[0], low), high))


@block
async def by_program(
    *, group: RolloutGroup, context: RewardContext, deadline: float, parts: tuple[tuple[str, Block], ...] = ()
) -> Scores:
    """The reward of the program that a group was played by.

        by_program(parts=(("main", exact_match()), ("verify", payoff_from_notes())))

    Raises BadValue for a program without a reward.
    """
    part = dict(parts).get(group.request.program)
    if part is None:
        raise BadValue(
            f"by_program: no reward for program {group.request.program!r}; add it to {', '.join(n for n, _ in parts)}"
        )
    return await score(part, [group], context, deadline)


@block
async def over_episode(
    *, group: RolloutGroup, context: RewardContext, deadline: float, reward: Block | None = None
) -> Scores:
    """A reward of all that an episode said, in however many contexts, at the end of each of its learned trajectories.

    For programs that go on in a new context (`search_agent(summarise=)`): `text` and `path` of `reward` are those of
    the learned trajectories end to end, without the prompts of the later ones. Its parts and reason stand once, at the
    last. Raises BadValue without a reward, and for one that scores places before the end.
    """
    if reward is None:
        raise BadValue("over_episode: it has no reward; give one, as in over_episode(reward=formed_f1())")
    ends = {e.id: [t.leaf for t in e.learned] for e in group.episodes}
    last = group.for_user()._replace(episodes=[replace(e, trajectories=e.learned[-1:]) for e in group.episodes])
    whole = _Whole(context, {at: leaves for leaves in ends.values() for at in leaves[-1:]})
    found = (await score(reward, [last], whole, deadline))["reward"]
    if not found.keys() <= whole.ends.keys():
        raise BadValue(f"over_episode: {reward.name} scores places before the end; give a reward of the outcome alone")
    return {
        "reward": {
            leaf: one if leaf == at else Score(one.value, error=one.error)
            for at, one in found.items()
            for leaf in ends[at.episode]
        }
    }


@dataclass(frozen=True)
class _Whole:
    """A RewardContext in which the path to an episode's last end is all of its learned paths, end to end."""

    inner: RewardContext
    ends: Mapping[Ref, Sequence[Ref]]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.inner.tokenizer

    @property
    def engine(self) -> Engine | None:
        return self.inner.engine

    @property
    def processes(self) -> Processes | None:
        return getattr(self.inner, "processes", None)

    def path(self, at: Ref) -> PathView:
        return end_to_end([self.inner.path(leaf) for leaf in self.ends.get(at, (at,))])

    def text(self, at: Ref) -> str:
        path = self.path(at)
        return self.tokenizer.decode(path.ids[own_tokens(path)])


def join_scores(
    scores: Sequence[Scores], join: Callable[[dict[int, float]], float], places: Iterable[Ref] | None = None
) -> Scores:
    """Combine the `reward` of several scores place by place, keeping parts, reasons, errors and other columns.

    places: where; None: the places of the first.
    """
    out: dict[Ref, Score] = {}
    for at in scores[0].get("reward", {}) if places is None else places:
        at_place = {i: f["reward"][at] for i, f in enumerate(scores) if places is None or at in f.get("reward", {})}
        known = {i: s.value for i, s in at_place.items() if s.value is not None}
        parts = {k: v for s in at_place.values() for k, v in s.parts.items()}
        why = "; ".join(s.why for s in at_place.values() if s.why)
        error = next((s.error for s in at_place.values() if s.error), None)
        out[at] = Score(join(known) if len(known) == len(at_place) else None, parts, why, error)
    return {column: other for f in scores[::-1] for column, other in f.items()} | {"reward": out}
