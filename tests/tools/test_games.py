"""Games on TextArena's engines: their rules, what they pay, that a match is a function of its deal, and how the program
plays them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from support.episodes import full_text, scripted_context, spans

from selfteach.core import Block, RolloutRequest, Score, Task, extras
from selfteach.core.blocks import block
from selfteach.core.errors import BadValue, UnknownName
from selfteach.core.scoring import score
from selfteach.loop.episode import play as episodes
from selfteach.reward.payoff import payoff_from_notes
from selfteach.rollout.play import play

pytest.importorskip("textarena", reason="the extra selfteach[games] is not installed")

from selfteach.tasks.games import games
from selfteach.tools import games as tool
from selfteach.tools import kuhn, nim, tictactoe
from selfteach.tools.games import GAMES, Match


def replayed(game: str, deal: int, moves: tuple[str, ...]) -> Match:
    match = Match(game, deal)
    for text in moves:
        match.move(text)
    return match


def finished(game: str, deal: int, first: str = "expert", second: str = "expert") -> Match:
    match, shared_rng_key = Match(game, deal), random.Random(deal)
    while match.turn is not None:
        match.move(match.sample_move((first, second)[match.turn], match.turn, shared_rng_key.random()))
    return match


# ---- Kuhn poker


@pytest.fixture(scope="module")
def deals() -> dict[str, int]:
    """The cards of the first and the second -> a deal that gives them: all six."""
    found = {kuhn.card(m, 0) + kuhn.card(m, 1): d for d in range(60) for m in [Match("kuhn", d)]}
    assert len(found) == 6
    return found


def value(deal: int, first: str, second: str, moves: tuple[str, ...] = ()) -> float:
    """What a deal is worth to the first, exactly: every move weighed with its chance."""
    match = replayed("kuhn", deal, moves)
    if match.turn is None:
        return match.payoffs[0]
    chances = match.strategy((first, second)[match.turn], match.turn)
    assert sum(chances.values()) == pytest.approx(1.0)
    return sum(c * value(deal, first, second, (*moves, text)) for text, c in chances.items())


def test_kuhn_poker_is_worth_minus_an_eighteenth_to_the_first(deals):
    worth = lambda first, second: sum(value(d, first, second) for d in deals.values()) / 6  # noqa: E731
    assert worth("expert", "expert") == pytest.approx(-1 / 18)
    assert (
        worth("random", "expert") < -1 / 18 < worth("expert", "random")
    )  # neither can do better against an equilibrium


@pytest.mark.parametrize("seat", [0, 1])
def test_nothing_does_better_against_the_expert(deals, seat, monkeypatch):
    """Every pure strategy of a seat: for each card one of (check and fold, check and call, bet) or (fold or call) and
    (check or bet).
    """
    usual, fixed = kuhn.expert, dict[str, str]()

    def other(match, at):
        if at != seat:
            return usual(match, at)
        free, called = fixed[kuhn.card(match, at)].split()
        return {f"[{called}]" if "[fold]" in match.moves(at) else f"[{free}]": 1.0}

    monkeypatch.setitem(tool.GAMES, "kuhn", replace(GAMES["kuhn"], expert=other))
    for plan in product(
        ("check fold", "check call", "bet call") if seat == 0 else ("check fold", "check call", "bet fold", "bet call"),
        repeat=3,
    ):
        fixed.update(zip("JQK", plan, strict=True))
        worth = sum(value(d, "expert", "expert") for d in deals.values()) / 6
        assert (worth if seat == 0 else -worth) <= (-1 / 18 if seat == 0 else 1 / 18) + 1e-9, plan


@pytest.mark.parametrize(
    ("cards", "moves", "won"),
    [
        ("KQ", "check check", 1),  # the ante
        ("QK", "check check", -1),
        ("KQ", "bet call", 2),  # the ante and the bet: TextArena's own engine pays 1
        ("JQ", "bet call", -2),
        ("JQ", "bet fold", 1),
        ("JK", "check bet fold", -1),
        ("QJ", "check bet call", 2),
    ],
)
def test_kuhn_poker_pays_what_is_in_the_pot(deals, cards, moves, won):
    match = replayed("kuhn", deals[cards], tuple(f"[{m}]" for m in moves.split()))
    assert match.turn is None and match.payoffs == (won, -won) and match.forfeited is None


def test_kuhn_poker_tells_each_seat_its_own_card_and_what_the_other_did(deals):
    match = Match("kuhn", deals["QK"])
    assert match.observation(0) == "kuhn poker, first. your card: Q.\nyou may [check] [bet]\n" and match.moves(0) == [
        "[check]",
        "[bet]",
    ]
    match.move("I [Check].")
    assert match.observation(1) == "kuhn poker, second. your card: K.\nthey check. you may [check] [bet]\n"
    match.move("[bet]")
    assert match.observation(0) == "\nthey bet. you may [fold] [call]\n"


# ---- the other two


def test_tic_tac_toe_played_well_is_a_draw():
    ends = {finished("tictactoe", d).payoffs for d in range(12)}
    assert ends == {(0.0, 0.0)}
    won = Counter(finished("tictactoe", d, "random", "expert").payoffs[1] for d in range(20))
    assert won[-1.0] == 0 and won[1.0] > 10


def test_tic_tac_toe_values_by_hand():
    assert tictactoe.value(".........", "X") == 0
    assert tictactoe.value("XX.OO....", "X") == 5  # it wins at once, with four squares left
    assert tictactoe.value("XX.OO....", "O") == 5
    match = replayed("tictactoe", 0, ("[0]", "[1]", "[4]"))
    assert match.observation(1) == "tic-tac-toe, you are X.\nO X 2\n3 O 5\n6 7 8\n"
    assert match.strategy("expert", 1) == {"[8]": 1.0}  # or it is lost
    match.move("[8]")
    assert match.moves(0) == ["[2]", "[3]", "[5]", "[6]", "[7]"]


def test_negotiation_trades_by_the_engine_s_rules():
    match = Match("negotiation", 1)
    mine, theirs = match.player(0), match.player(1)
    before = {p: dict(match.state["player_resources"][p]) for p in (mine, theirs)}
    match.observation(0)
    match.move("[offer: 2 Wheat -> 1 Wood]")
    assert "they offer 2 Wheat -> 1 Wood. you may [accept] [deny]" in match.observation(1)
    match.move("[accept]")
    after = match.state["player_resources"]
    assert after[mine]["Wheat"] == before[mine]["Wheat"] - 2 and after[theirs]["Wood"] == before[theirs]["Wood"] - 1
    assert after[mine]["Wood"] == before[mine]["Wood"] + 1 and match.observation(0).startswith("\nthey accept.")
    ends = [finished("negotiation", d, "expert", "random") for d in range(8)]
    assert {m.payoffs for m in ends} <= {(1.0, -1.0), (-1.0, 1.0), (0.0, 0.0)} and all(
        m.forfeited is None for m in ends
    )
    assert sum(m.payoffs[0] for m in ends) > 0


# ---- all of them


@pytest.mark.parametrize("game", sorted(GAMES))
def test_a_move_that_is_not_allowed_is_told_and_the_second_forfeits(game):
    match, bad = Match(game, 5), "[offer: 99 Ore -> 1 Wood]" if game == "negotiation" else "[fold]"
    match.observation(0)
    match.move(bad)
    assert match.turn == 0 and match.observation(0).startswith("\nnot allowed. you may [")
    match.move(match.moves(0)[0])
    assert match.turn == 1  # forgiven
    again = replayed(game, 5, (bad, bad))
    assert (
        again.turn is None and again.forfeited == 0 and again.payoffs == (-GAMES[game].max_loss, GAMES[game].max_loss)
    )
    with pytest.raises(BadValue, match="over"):
        again.move("[bet]")


@pytest.mark.parametrize("game", sorted(GAMES))
def test_a_match_is_a_function_of_its_deal(game):
    alone = [finished(game, d) for d in (1, 2)]
    random.seed(7)
    before = random.getstate()
    both = [Match(game, 1), Match(game, 2)]
    shared_rng_key = [random.Random(1), random.Random(2)]
    inside = random.getstate()
    while any(m.turn is not None for m in both):
        for match, lot in zip(both, shared_rng_key, strict=True):
            if match.turn is not None:
                match.move(match.sample_move("expert", match.turn, lot.random()))
    assert before == inside == random.getstate()
    for one, other in zip(alone, both, strict=True):
        assert one.history == other.history and one.payoffs == other.payoffs and one.state == other.state


def test_the_engine_s_own_words_are_there_for_models_that_read():
    match = Match("kuhn", 3, full=True)
    assert "Kuhn Poker uses a 3-card deck" in match.observation(0)
    match.move("[bet]")
    assert "'[fold]', '[call]'" in match.observation(1) and "ante" not in match.observation(1)


def test_wrong_names_are_answered_with_near_ones(monkeypatch):
    with pytest.raises(UnknownName, match="kuhn"):
        games(games=("kun",))
    with pytest.raises(UnknownName, match="expert"):
        Match("kuhn", 0).strategy("exprt", 0)
    with pytest.raises(BadValue, match="noise"):
        games(noise=2)

    def gone(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(extras, "import_module", gone)
    with pytest.raises(BadValue, match=r"selfteach\[games\]"):
        games()


# ---- the task


@pytest.mark.parametrize("game", sorted(GAMES))
def test_demonstrations_are_what_the_program_would_show_and_allowed(game):
    source = games(games=(game,), n_test=4)
    assert source.demos(7) == games(games=(game,), n_test=4).demos(7) and source.train(3) != source.train(4)
    for d in map(source.demos, range(30)):
        match, heard = Match(game, d.tags["deal"]), ["", ""]
        for text in d.tags["before"]:
            heard[match.turn] += match.observation(match.turn) + text
            match.move(text)
        seat = 0 if d.tags["seat"] == "first" else 1
        assert match.turn == seat and d.prompt == heard[seat] + match.observation(seat)
        match.move(d.data[0])
        assert match.history[-1] == (seat, d.data[0])  # it was allowed
    assert {source.demos(i).tags["slip"] for i in range(20)} == {"", "lot"}
    assert all(t.tags["category"] == game and t.tags["deal"] != source.train(0).tags["deal"] for t in source.test)


# ---- the program


def match_context(program, replies, tokenizer, model_roles=("policy",)):
    return scripted_context(program, replies, tokenizer, model_roles=model_roles, tools={"match": tool.match()()})


def task_of(cards: str, deals: dict[str, int]) -> Task:
    return Task("t", "play kuhn.\n", ("win",), tags={"game": "kuhn", "deal": deals[cards]})


def test_two_seats_share_the_policy_and_have_a_context_and_a_payoff_each(deals, letters):
    at = match_context(play(), lambda text, _: "[call]" if "they bet" in text else "[bet] and so on", letters)
    (group,) = asyncio.run(episodes(at, [RolloutRequest(task_of("KQ", deals), 2, key="k")]))
    for e in group.episodes:
        assert e.status == "done" and e.answer == "win"
        assert [(t.key, t.role, t.learn) for t in e.trajectories] == [
            ("k/first", "first", "main"),
            ("k/second", "second", "main"),
        ]
        assert [e.tree.notes[t.leaf.node]["payoff"] for t in e.trajectories] == [2.0, -2.0]
        assert full_text(e, letters, 0) == "kuhn poker, first. your card: K.\nyou may [check] [bet]\n[bet]"
        assert full_text(e, letters, 1) == "kuhn poker, second. your card: Q.\nthey bet. you may [fold] [call]\n[call]"
    found = asyncio.run(score(payoff_from_notes(), [group], at))["reward"]
    assert sorted(s.value for s in found.values()) == [-2.0, -2.0, 2.0, 2.0] and all(
        s.parts == {"forfeit": 0.0} for s in found.values()
    )


def test_what_one_did_comes_into_the_other_s_context_as_no_token_of_its_own(deals, letters):
    at = match_context(
        play(), lambda text, _: "[fold]" if "they bet" in text else "[check]" if "first" in text else "[bet]", letters
    )
    e = asyncio.run(episodes(at, [RolloutRequest(task_of("QK", deals), 1)]))[0].episodes[0]
    assert (
        full_text(e, letters, 0)
        == "kuhn poker, first. your card: Q.\nyou may [check] [bet]\n[check]\nthey bet. you may [fold] [call]\n[fold]"
    )
    own = letters.decode(e.tree.id[e.tree.action_mask])
    assert own == "[check][bet][fold]" and spans(e, letters, "x") == ""


def test_an_illegal_move_is_answered_and_the_second_loses(deals, letters):
    at = match_context(play(second="expert"), ["[fold]", "nonsense"], letters)
    e = asyncio.run(episodes(at, [RolloutRequest(task_of("KQ", deals), 1)]))[0].episodes[0]
    assert e.answer == "loss" and "\nnot allowed. you may [check] [bet]\n" in full_text(e, letters)
    (t,) = e.trajectories
    assert e.tree.notes[t.leaf.node] == {"payoff": -2.0, "seat": 0, "forfeit": 1.0, "success": 0.0} and t.key.endswith(
        "/first"
    )


def test_older_selves_are_not_learned_and_seats_rotate(deals, letters):
    at = match_context(play(second="past", rotate=True), ["[check]"], letters, model_roles=("policy", "past"))
    (group,) = asyncio.run(episodes(at, [RolloutRequest(task_of("KQ", deals), 24, key="k")]))
    seats = Counter((t.key, t.learn) for e in group.episodes for t in e.trajectories)
    assert set(seats) == {("k/first", "main"), ("k/second", "main"), ("k/first", None), ("k/second", None)}
    assert seats["k/first", "main"] == seats["k/second", None] > 4
    for e in group.episodes:  # king against queen, both check: the policy wins where it sits first
        (policy,) = [t for t in e.trajectories if t.learn]
        assert e.answer == ("win" if policy.role == "first" else "loss")


def test_seats_are_swapped_where_the_draw_is_below_a_half(deals, letters):
    draws: list[float] = []

    async def main(*, request, rollout):
        draws.append(rollout.random("seats").random())
        return await play(request=request, rollout=rollout, second="past", rotate=True)

    at = match_context(Block(main), ["[check]"], letters, model_roles=("policy", "past"))
    (group,) = asyncio.run(episodes(at, [RolloutRequest(task_of("KQ", deals), 8, key="k")]))
    first = [next(t.role for t in e.trajectories if t.learn) == "first" for e in group.episodes]
    assert first == [u >= 0.5 for u in draws] and len(set(first)) == 2


def test_a_spent_limit_forfeits(deals, letters):
    at = scripted_context(play(second="expert"), ["[check]"], letters, tools={"match": tool.match()()}, length=40)
    e = asyncio.run(episodes(at, [RolloutRequest(task_of("KQ", deals), 1)]))[0].episodes[0]
    assert e.answer == "loss" and e.trajectories[0].status == "limit"


def test_a_player_nobody_knows_fails_the_episode(deals, letters):
    at = match_context(play(second="nobody"), ["[check]"], letters)
    e = asyncio.run(episodes(at, [RolloutRequest(task_of("KQ", deals), 1)]))[0].episodes[0]
    assert e.status == "error" and "no player is called 'nobody'" in e.why


def test_a_note_that_is_missing_is_no_zero(letters):
    @block
    async def quiet_program(*, request, rollout):
        rollout.policy.begin("x").close()

    at = scripted_context(quiet_program(), ["x"], letters)
    (group,) = asyncio.run(episodes(at, [RolloutRequest(Task("t", "x"), 1)]))
    (found,) = asyncio.run(score(payoff_from_notes(), [group], at))["reward"].values()
    assert isinstance(found, Score) and found.value is None and "no note 'payoff'" in found.error


# ---- Nim


def test_in_nim_who_leaves_a_nim_sum_of_0_wins_and_the_expert_does():
    wins = {True: set[float](), False: set[float]()}
    for number in range(60):
        first, second, third = nim.piles(Match("nim", number))
        lost = first ^ second ^ third == 0
        wins[lost].add(finished("nim", number).payoffs[0])
        assert max(first, second, third) <= 5
        wins[lost].add(
            finished("nim", number, "random" if lost else "expert", "expert" if lost else "random").payoffs[0]
        )
    assert wins == {True: {-1.0}, False: {1.0}}, "the expert wins whatever the other does, where that can be done"


def test_nim_shows_the_piles_and_a_thought_ends_in_the_move():
    match = next(m for m in (Match("nim", d) for d in range(999)) if nim.piles(m) == [3, 5, 4])
    assert match.observation(0) == "nim.\npiles 3 5 4\n"
    assert match.strategy("expert", 0) == {"[0 2]": 1.0} and len(match.moves(0)) == 12
    assert nim.thought(match, 0) == "<think> 3 ^ 5 = 6. 6 ^ 4 = 2. 3 ^ 2 = 1.</think>"
    match.move(f"{nim.thought(match, 0)} [0 2]")
    assert nim.piles(match) == [1, 5, 4] and match.observation(1) == "nim.\npiles 1 5 4\n"
    assert set(match.strategy("expert", 1).values()) == {1 / 10}, "all are lost alike"
    assert nim.thought(match, 1) == "<think> 1 ^ 5 = 4. 4 ^ 4 = 0.</think>"
    match.move("[0 3]")
    legal = "[0 1] [1 1] [1 2] [1 3] [1 4] [1 5] [2 1] [2 2] [2 3] [2 4]"
    assert match.turn == 1 and match.observation(1) == f"\nnot allowed. you may {legal}\n"
    match.move("[3 1]")
    assert match.forfeited == 1 and match.payoffs == (1.0, -1.0)


def test_experts_think_before_they_move_and_random_players_do_not():
    source = games(games=("nim",), noise=0.5, thoughts=True)
    for item in map(source.demos, range(60)):  # type: ignore[arg-type]
        assert item.data[0].startswith("<think>") == (item.tags["slip"] == "")
    for item in map(source.practice, range(60)):  # type: ignore[arg-type]
        assert item.data[0].startswith("<think>") and item.tags["slip"] == "", "practice shows the expert's moves alone"
    assert not any("<think>" in games(games=("nim",)).demos(i).data[0] for i in range(20))  # type: ignore[misc]
