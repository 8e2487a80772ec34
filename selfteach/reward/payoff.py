"""A reward that the program itself wrote as a note, such as the payoff of a game."""

from __future__ import annotations

from ..core import Ref, RolloutGroup, Score, Scores, block, provides


@block
def payoff_from_notes(*, group: RolloutGroup, name: str = "payoff", parts: tuple[str, ...] = ("forfeit",)) -> Scores:
    """The note `name` at a trajectory's end; parts: other notes there that become parts of the score."""
    out: dict[Ref, Score] = {}
    for tree, node, leaf in [(e.tree, t.leaf.node, t.leaf) for e in group.episodes for t in e.trajectories]:
        value = tree.number(node, name)
        error = None if value is not None else f"the program wrote no note {name!r} at this trajectory's end"
        out[leaf] = Score(value, {p: v for p in parts if (v := tree.number(node, p)) is not None}, error=error)
    return {"reward": out}


NOTED = ("executable", "repeated", "progress")  # of `Env.notes`, those that are columns


@block
@provides("turn_reward", *NOTED)
def episode_return(*, group: RolloutGroup) -> Scores:
    """The return of an episode in an environment: the sum of its turns' rewards, as the program `act` noted them.

    Parts: success (1 where the environment was done and went well; what evaluation counts as right), turns, and the
    mean over turns of executable and repeated. Columns: `turn_reward`, the reward of each turn, and executable,
    repeated and progress, where the environment notes them (`Env.notes`).
    """
    out: dict[Ref, Score] = {}
    turns: dict[str, dict[Ref, Score]] = {}
    for episode in group.episodes:
        for t in episode.trajectories:
            value, parts = episode.tree.number(t.leaf.node, "episode_return"), dict[str, float]()
            for name in ("success", "turns"):
                if (part := episode.tree.number(t.leaf.node, name)) is not None:
                    parts[name] = part
            path = [node for node, _ in episode.tree.path(t.leaf.node)]
            for name in ("executable", "repeated"):
                if known := [v for node in path if (v := episode.tree.number(node, name)) is not None]:
                    parts[name] = sum(known) / len(known)
            error = None if value is not None else "the program noted no return; take the program act()"
            out[t.leaf] = Score(value, parts, error=error)
        for node in episode.tree.notes:
            for name in ("turn_reward", *NOTED):
                if (number := episode.tree.number(node, name)) is not None:
                    turns.setdefault(name, {})[Ref(episode.id, node)] = Score(number)
    return {"reward": out, "turn_reward": {}, **turns}
