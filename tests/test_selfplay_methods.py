"""Self-play: baselines of roles by hand, exploitability against known figures, and who sits where."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from conftest import table_of

from selfteach.core import BadValue, registry
from selfteach.core.task import Request, Task
from selfteach.credit.baseline import moving_baseline, role_baseline
from selfteach.engine.scripted import ScriptedEngine
from selfteach.loop.episode import play as episodes
from selfteach.rollout.play import exploitability


def test_each_game_and_role_has_a_baseline_of_its_own():
    # b: kuhn/first 0.4, the others 0. kuhn/first is paid 1, -2 (mean -1/2, two games): 0.81 * 0.4 + 0.19 * -0.5 = 0.229;
    # kuhn/second -1, 2: 0.19 * 0.5 = 0.095; negotiation/first 1: 0.1
    given = {
        "reward": np.array([1.0, -1.0, -2.0, 2.0, 1.0]),
        "category": np.array(["kuhn"] * 4 + ["negotiation"]),
        "role": np.array(["first", "second", "first", "second", "first"]),
    }
    out, state = role_baseline(**given, state={"kuhn/first": 0.4}, decay=0.9)
    assert out["adv"].values == pytest.approx([0.6, -1.0, -2.4, 2.0, 1.0])
    assert state == pytest.approx({"kuhn/first": 0.229, "kuhn/second": 0.095, "negotiation/first": 0.1})
    order = [3, 4, 0, 2, 1]
    again, same = role_baseline(**{k: v[order] for k, v in given.items()}, state={"kuhn/first": 0.4}, decay=0.9)
    assert again["adv"].values == pytest.approx(out["adv"].values[order]) and same == pytest.approx(state)


def test_without_roles_a_zero_sum_game_has_no_baseline_at_all():
    # The payoffs of both seats sum to zero, so their common average is 0 whatever a seat is worth.
    reward = np.array([-1.0, 1.0, -2.0, 2.0])
    game, role = np.array(["kuhn"] * 4), np.array(["first", "second"] * 2)
    _, shared = role_baseline(reward=reward, category=game, role=role, state={}, by=("category",))
    _, own = role_baseline(reward=reward, category=game, role=role, state={})
    assert shared == {"kuhn": 0.0} and own["kuhn/first"] < 0 < own["kuhn/second"]
    alone, _ = role_baseline(reward=reward, category=game, role=role, state={"": 0.25}, by=())
    assert alone["adv"].values == pytest.approx(moving_baseline(reward=reward, state={"mean": 0.25, "batches": 1})[0]["adv"].values)
    with pytest.raises(BadValue, match="category, role or both"):
        role_baseline(reward=reward, category=game, role=role, state={}, by=("seat",))


textarena = pytest.importorskip("textarena", reason="the extra selfteach[games] is not installed")

from selfteach.tasks.games import games  # noqa: E402
from selfteach.tools import exploit, kuhn  # noqa: E402
from selfteach.tools.games import Match, match  # noqa: E402


def chances_of(bet: dict[str, float], call: dict[str, float], answer_bet: dict[str, float], answer_call: dict[str, float]):
    return {(s, c): ((bet, answer_bet)[s][c], (call, answer_call)[s][c]) for s in (0, 1) for c in kuhn.CARDS}


def test_an_equilibrium_cannot_be_exploited_and_folding_can():
    third = dict(zip("JQK", (1 / 3, 0.0, 1.0), strict=True))
    # Kuhn's equilibria: the first bets J with a, K with 3a, calls Q with a + 1/3; the second bets J 1/3 and calls Q 1/3. Here a = 1/3.
    nash = chances_of(third, {"J": 0.0, "Q": 2 / 3, "K": 1.0}, third, {"J": 0.0, "Q": 1 / 3, "K": 1.0})
    assert exploit.book().exploitability(nash) == pytest.approx(0.0, abs=1e-12)
    # Who always checks and always folds loses its ante in every game to a better who bets everything: (1 + 1) / 2.
    never = dict.fromkeys("JQK", 0.0)
    assert exploit.book().exploitability(chances_of(never, never, never, never)) == pytest.approx(1.0)


def test_the_worth_of_a_deal_is_what_the_engine_pays():
    deals = {kuhn.card(m, 0) + kuhn.card(m, 1): d for d in range(60) for m in [Match("kuhn", d)]}
    for cards, deal in deals.items():
        for plan in np.ndindex(2, 2, 2, 2):
            bet, call, answer_bet, answer_call = plan
            match = Match("kuhn", deal)
            while match.turn is not None:
                called = "[fold]" in match.moves(match.turn)
                bold = ((bet, call), (answer_bet, answer_call))[match.turn][called]
                match.move((("[check]", "[bet]"), ("[fold]", "[call]"))[called][bold])
            assert exploit.worth(*cards, *map(float, plan)) == match.payoffs[0], (cards, plan)


def test_all_twelve_situations_are_told_as_in_a_match():
    found = exploit.book().situations
    assert len({(s.seat, s.card, s.called) for s in found}) == len(found) == 12
    for s in found:
        assert len(s.texts) == (3 if (s.seat, s.called) == (0, True) else 1) and f"your card: {s.card}" in s.texts[0]
        assert all(move in s.texts[-1] for move in s.moves)


def test_the_figure_of_a_policy_is_that_of_its_chances(letters):
    """A policy that gives every token one chance prefers the shorter text: "[bet]" to "[check]" by two bytes, "[call]" and "[fold]" alike."""

    class Counting(ScriptedEngine):
        asked = 0

        async def score(self, member, context, tokens, want=("logp",)):
            self.asked += 1
            return {"logp": np.full(len(tokens), -0.5, np.float32)}

    table = table_of(exploitability(), [], letters)
    table.engine = Counting([], letters)
    table.tools = {"situations": lambda task: exploit.book()}
    (group,) = asyncio.run(episodes(table, [Request(Task("t", "play"), 3)]))
    assert {e.status for e in group.episodes} == {"done"}, group.episodes[0].why
    bold = dict.fromkeys("JQK", 1 / (1 + np.exp(-1.0)))
    half = dict.fromkeys("JQK", 0.5)
    want = exploit.book().exploitability(chances_of(bold, half, bold, half))
    for e in group.episodes:
        assert e.tree.notes[e.trajectories[0].leaf.node]["payoff"] == pytest.approx(-want)
    assert table.engine.asked == 24, "figured out once for all episodes"


@pytest.mark.parametrize(("opponent", "roles"), [("self", ["first", "second"]), ("past", []), ("random", [])])
def test_who_plays_and_who_learns(opponent, roles, letters):
    """Both seats of self-play learn, each in a group of its own; against another the policy alone, in either seat."""
    method = registry.methods.get("spiral")(opponent=opponent)
    assert method.cast.keys() == {"policy", "ref"} | ({"past"} if opponent == "past" else set())
    source = games(n_test=4)
    table = table_of(method.stage.programs["main"], lambda *_: "[check]", letters, members=tuple(method.cast))
    table.tools = {"match": match()()}
    groups = asyncio.run(episodes(table, [Request(source.train(i)) for i in range(12)]))
    seats = set()
    for e in (e for g in groups for e in g.episodes):
        assert e.status == "done", e.why
        learned = [t for t in e.trajectories if t.learn]
        seats |= {t.role for t in learned}
        if opponent == "self":
            assert [t.role for t in learned] == roles and len({t.key for t in learned}) == 2
        elif opponent == "past":
            assert len(learned) == 1 and len(e.trajectories) == 2
        assert sum(e.tree.notes[t.leaf.node]["payoff"] for t in e.trajectories) == 0 or len(e.trajectories) == 1
    assert seats == {"first", "second"}
