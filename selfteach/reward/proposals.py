"""What proposers and solvers of questions are paid."""

from __future__ import annotations

from ..core import Group, Score, Scores, block
from .answer import exact_match


@block
def proposer_and_solver(*, groups: list[Group], stream: str = "propose", invalid: float = 0.0) -> Scores:
    """The solver 1 where it is right, else 0; the proposer what its solvers fail: 1 - their mean success (SSP, 2510.18821, equation 4).

    A proposer is the cause of its solvers' group. invalid: its pay where nobody was asked its question. Parts: `answer` of solvers; of
    proposers `valid`, and where valid `hard` (1 - success) and `true` (whether the corpus bears the question out, where it says).
    """
    out: dict = {}
    asked: dict[str, tuple[float, Group]] = {}
    for group in groups:
        won: list[float] = []
        for episode in group.episodes:
            for t in episode.trajectories:
                if t.learn is not None and t.learn != stream:
                    out[t.leaf] = exact_match(answer=episode.answer, task=group.request.task)
                    won.append(out[t.leaf].value or 0.0)
        if won and group.request.cause is not None:
            asked[group.request.cause] = (sum(won) / len(won), group)
    for group in groups:
        for t in (t for e in group.episodes for t in e.trajectories if t.learn == stream):
            if group.key not in asked:
                out[t.leaf] = Score(invalid, {"valid": 0.0}, "its question was not asked")
                continue
            success, solvers = asked[group.key]
            true = solvers.request.task.tags.get("true")
            parts = {"valid": 1.0, "hard": 1 - success, **({} if true is None else {"true": float(true)})}
            out[t.leaf] = Score(1 - success, parts)
    return {"reward": out}
