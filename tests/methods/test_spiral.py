"""SPIRAL: role baselines by hand, exploitability against known values, and the roles that learn."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import numpy as np
import pytest
from support.episodes import scripted_context

from selfteach.core import BadValue, registry
from selfteach.core.task import RolloutRequest, Task
from selfteach.credit.advantages import moving_baseline
from selfteach.engine.scripted import ScriptedEngine
from selfteach.loop.episode import play as episodes
from selfteach.methods.spiral import exploitability, role_baseline
from selfteach.tasks.games import games
from selfteach.tools import exploit, kuhn
from selfteach.tools.games import Match, match

needs_games = pytest.mark.skipif(find_spec("textarena") is None, reason="needs the extra selfteach[games]")


def test_each_game_and_role_has_a_baseline_of_its_own():
    # b: kuhn/first 0.4, the others 0. kuhn/first has payoffs 1, -2 (mean -1/2, two games): 0.81 * 0.4 + 0.19 * -0.5 =
    # 0.229; kuhn/second -1, 2: 0.19 * 0.5 = 0.095; negotiation/first 1: 0.1
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


def test_without_roles_the_baseline_of_a_zero_sum_game_is_zero():
    # The payoffs of both roles sum to zero, so their common average is 0 whatever the value of a role.
    reward = np.array([-1.0, 1.0, -2.0, 2.0])
    game, role = np.array(["kuhn"] * 4), np.array(["first", "second"] * 2)
    _, shared = role_baseline(reward=reward, category=game, role=role, state={}, by=("category",))
    _, own = role_baseline(reward=reward, category=game, role=role, state={})
    assert shared == {"kuhn": 0.0} and own["kuhn/first"] < 0 < own["kuhn/second"]
    alone, _ = role_baseline(reward=reward, category=game, role=role, state={"": 0.25}, by=())
    assert alone["adv"].values == pytest.approx(
        moving_baseline(reward=reward, state={"mean": 0.25, "batches": 1})[0]["adv"].values
    )
    with pytest.raises(BadValue, match="category, role or both"):
        role_baseline(reward=reward, category=game, role=role, state={}, by=("seat",))


def probabilities_of(
    bet: dict[str, float], call: dict[str, float], answer_bet: dict[str, float], answer_call: dict[str, float]
):
    return {(s, c): ((bet, answer_bet)[s][c], (call, answer_call)[s][c]) for s in (0, 1) for c in kuhn.CARDS}


@needs_games
def test_exploitability_is_zero_at_equilibrium_and_one_for_always_folding():
    third = dict(zip("JQK", (1 / 3, 0.0, 1.0), strict=True))
    # Kuhn's equilibria: the first bets J with a, K with 3a, calls Q with a + 1/3; the second bets J 1/3 and calls Q
    # 1/3. Here a = 1/3.
    nash = probabilities_of(third, {"J": 0.0, "Q": 2 / 3, "K": 1.0}, third, {"J": 0.0, "Q": 1 / 3, "K": 1.0})
    assert exploit.information_sets().exploitability(nash) == pytest.approx(0.0, abs=1e-12)
    # Who always checks and always folds loses its ante in every game to a better who bets everything: (1 + 1) / 2.
    never = dict.fromkeys("JQK", 0.0)
    assert exploit.information_sets().exploitability(probabilities_of(never, never, never, never)) == pytest.approx(1.0)


@needs_games
def test_the_value_of_a_deal_is_the_payoff_of_the_game_engine():
    deals = {kuhn.card(m, 0) + kuhn.card(m, 1): d for d in range(60) for m in [Match("kuhn", d)]}
    for cards, deal in deals.items():
        for plan in np.ndindex(2, 2, 2, 2):
            bet, call, answer_bet, answer_call = plan
            match = Match("kuhn", deal)
            while match.turn is not None:
                called = "[fold]" in match.moves(match.turn)
                bold = ((bet, call), (answer_bet, answer_call))[match.turn][called]
                match.move((("[check]", "[bet]"), ("[fold]", "[call]"))[called][bold])
            assert exploit.deal_value(*cards, *map(float, plan)) == match.payoffs[0], (cards, plan)


@needs_games
def test_the_texts_of_all_twelve_situations_are_those_of_a_match():
    found = exploit.information_sets().situations
    assert len({(s.seat, s.card, s.called) for s in found}) == len(found) == 12
    for s in found:
        assert len(s.texts) == (3 if (s.seat, s.called) == (0, True) else 1) and f"your card: {s.card}" in s.texts[0]
        assert all(move in s.texts[-1] for move in s.moves)


@needs_games
def test_exploitability_of_a_policy_is_that_of_its_move_probabilities(letters):
    """A policy of one probability for every token prefers the shorter text: "[bet]" to "[check]" by two bytes, "[call]"
    and "[fold]" alike.
    """

    class Counting(ScriptedEngine):
        asked = 0

        async def score(self, model_role, context, tokens, want=("logp",)):
            self.asked += 1
            return {"logp": np.full(len(tokens), -0.5, np.float32)}

    context = scripted_context(exploitability(), [], letters)
    context.engine = Counting([], letters)
    context.tools = {"situations": lambda task: exploit.information_sets()}
    (group,) = asyncio.run(episodes(context, [RolloutRequest(Task("t", "play"), 3)]))
    assert {e.status for e in group.episodes} == {"done"}, group.episodes[0].why
    bold = dict.fromkeys("JQK", 1 / (1 + np.exp(-1.0)))
    half = dict.fromkeys("JQK", 0.5)
    want = exploit.information_sets().exploitability(probabilities_of(bold, half, bold, half))
    for e in group.episodes:
        assert e.tree.notes[e.trajectories[0].leaf.node]["payoff"] == pytest.approx(-want)
    assert context.engine.asked == 24, "computed once for all episodes"


@needs_games
@pytest.mark.parametrize(("opponent", "roles"), [("self", ["first", "second"]), ("past", []), ("random", [])])
def test_the_roles_that_play_and_the_roles_that_learn(opponent, roles, letters):
    """Both roles of self-play learn, each in a group of its own; against another the policy alone, in either."""
    method = registry.methods.get("spiral")(opponent=opponent)
    assert method.models.keys() == {"policy", "ref"} | ({"past"} if opponent == "past" else set())
    source = games(n_test=4)
    context = scripted_context(
        method.stage.programs["main"], lambda *_: "[check]", letters, model_roles=tuple(method.models)
    )
    context.tools = {"match": match()()}
    groups = asyncio.run(episodes(context, [RolloutRequest(source.train(i)) for i in range(12)]))
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
