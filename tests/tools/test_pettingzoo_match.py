"""PettingZoo's classic games as matches: what they say, what they pay, that a match is a function of its seed and
moves, and how the program `play` plays them.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from support.episodes import full_text, scripted_context

from selfteach.cli import main
from selfteach.configuration import plan, task_source
from selfteach.core import BadValue, RolloutRequest, SelfteachError
from selfteach.core.scoring import score
from selfteach.loop.episode import play as episodes
from selfteach.methods import grpo, spiral
from selfteach.rollout.play import play

pytest.importorskip("pettingzoo", reason="the extra selfteach[pettingzoo] is not installed")
pytest.importorskip("rlcard", reason="the extra selfteach[pettingzoo] is not installed")

from selfteach.tools.pettingzoo_match import PettingZooMaker

GAMES = {
    "tictactoe_v3": "",
    "connect_four_v3": "",
    "rps_v2": "num_actions=5",
    "leduc_holdem_v4": "",
    "texas_holdem_v4": "num_players=3",
    "texas_holdem_no_limit_v6": "",
    "chess_v6": "",
    "go_v5": "board_size=5",
    "hanabi_v5": "players=3",
}


def begun(id: str, seed: int = 0, **options):
    match = PettingZooMaker(id, options)()
    match.begin(seed)
    return match


def played(id: str, moves: str, seed: int = 0, **options):
    match = begun(id, seed, **options)
    for move in moves.split():
        match.move(f"[{move}]")
    return match


def test_tic_tac_toe_is_said_and_paid():
    match = begun("tictactoe_v3")
    assert match.observation(0) == (
        "tic-tac-toe, you are X.\n0 3 6\n1 4 7\n2 5 8\nyou may [0] [1] [2] [3] [4] [5] [6] [7] [8]\n"
    )
    match.move("I take [4].")
    assert match.turn == 1 and "you are O" in (seen := match.observation(1)) and "1 X 7" in seen
    match = played("tictactoe_v3", "4 0 2 8 6")  # X has 2, 4 and 6: a diagonal
    assert match.turn is None and match.payoffs == [1.0, -1.0]
    with pytest.raises(BadValue, match="the match is over"):
        match.move("[1]")


@pytest.mark.parametrize("id", ["tictactoe_v3", "leduc_holdem_v4", "go_v5"])
def test_an_illegal_move_is_told_and_a_second_one_forfeits(id):
    match = begun(id, board_size=5) if id == "go_v5" else begun(id)
    match.observation(0)
    match.move("[nonsense]")
    assert match.turn == 0 and match.observation(0).startswith("\nnot allowed. you may [")
    match.move(match.moves(0)[0])  # a legal one in between: they are not in a row
    seat = match.turn
    match.observation(seat)
    match.move("nothing")
    match.move("[4] no, [77]")
    loss = 7.0 if id == "leduc_holdem_v4" else 1.0  # no less than what a legal match can cost
    assert match.turn is None and match.forfeited == seat
    assert match.payoffs[seat] == -loss and match.payoffs[1 - seat] == loss


def test_the_others_share_what_a_forfeit_costs_unless_they_play_together():
    match = played("texas_holdem_v4", "x x", num_players=3)
    assert match.payoffs == [-25.0, 12.5, 12.5]
    match = played("hanabi_v5", "x x")
    assert match.payoffs == [-1.0, 0.0]


def test_connect_four_is_won_by_four_in_a_column():
    assert played("connect_four_v3", "0 1 0 1 0 1 0").payoffs == [1.0, -1.0]


def test_the_expert_wins_at_once_and_stops_the_other_from_it():
    assert played("connect_four_v3", "0 1 0 1 0 1").expert_moves(0) == ["[0]"]  # four of its own before a block
    assert played("connect_four_v3", "0 1 0 1 0").expert_moves(1) == ["[0]"]
    assert played("tictactoe_v3", "0 4 1").expert_moves(1) == ["[2]"]
    assert len(played("tictactoe_v3", "0").expert_moves(1)) == 8
    results = [0, 0]
    for seed in range(30):
        match, draw = begun("connect_four_v3", seed), random.Random(seed)
        while match.turn is not None:
            match.move(match.sample_move(("expert", "random")[match.turn], match.turn, draw.random()))
        results = [a + (b > 0) for a, b in zip(results, match.payoffs, strict=True)]
    assert results[0] > 4 * results[1]


def test_rounds_are_counted_and_nobody_sees_what_is_said_at_the_same_time():
    match = begun("rps_v2", max_cycles=2)
    assert match.observation(0) == "rock paper scissors.\nround 1 of 2.\nyou may [rock] [paper] [scissors]\n"
    match.move("[rock]")
    assert "they said" not in match.observation(1)
    match.move("[scissors]")
    assert match.observation(0) == "\nround 2 of 2. they said scissors.\nyou may [rock] [paper] [scissors]\n"
    match.move("[rock]")
    assert "they said rock" in match.observation(1)  # of the first round
    match.move("[rock]")
    assert match.payoffs == [1.0, -1.0] and match.turn is None
    assert played("rps_v2", "x x", max_cycles=2).payoffs == [-2.0, 2.0]


def test_poker_says_the_own_cards_and_what_was_done_since():
    match = begun("leduc_holdem_v4", 3)
    first = match.observation(0)
    match.move("[raise]")
    second = match.observation(1)
    assert "they raise. hand " in second and "you may [call] [raise] [fold]" in second
    hands = [text.split("hand ")[1][:2] for text in (first, second)]
    assert hands[0] != hands[1] and all(h[0] in "JQK" for h in hands)
    match.move("[fold]")
    assert match.payoffs == [1.0, -1.0]
    three = played("texas_holdem_v4", "call", num_players=3)
    assert "player 2 call." in three.observation(1)  # who sits two places after it


def test_chess_and_go_name_moves_as_players_do():
    match = played("chess_v6", "e2e4")
    assert "they played e2e4." in match.observation(1) and "[e7e5]" in match.moves(1)
    mate = played("chess_v6", "f2f3 e7e5 g2g4 d8h4")
    assert mate.payoffs == [-1.0, 1.0]
    go = played("go_v5", "E5", board_size=5)
    assert go.observation(1).splitlines()[1] == " 5 . . . . X" and "[E5]" not in go.moves(1)
    assert played("go_v5", "A1 pass pass", board_size=5).turn is None


def test_go_boards_of_two_sizes_do_not_disturb_each_other():
    moves = ["A1", "E5", "A2", "E4", "pass"]
    alone = played("go_v5", " ".join(moves), board_size=5)
    small, large = begun("go_v5", board_size=5), begun("go_v5", board_size=9)
    for move in moves:
        large.move("[J9]" if move == "A1" else "[pass]" if move == "pass" else f"[{move}]")
        small.move(f"[{move}]")
    assert small.observation(1) == alone.observation(1) and small.moves(1) == alone.moves(1)
    assert " 9 . . . . . . . . X" in large.observation(1) and "[H8]" in large.moves(1)


def whole(id: str, config: str, beside: bool) -> list[str]:
    """What all seats are shown in some matches, played by random, alone or with others between their moves."""
    source = task_source("pettingzoo", {"id": id, "config": config})
    make, texts = source.tools["match"].args["make"], list[str]()
    for seed in range(3):
        match, other, draw = make(), make(), random.Random(seed)
        match.begin(seed)
        other.begin(seed + 100)
        while match.turn is not None:
            if beside and other.turn is not None:
                other.move(other.sample_move("random", other.turn, 0.3))
                random.random()
            match.move(match.sample_move("random", match.turn, draw.random()))
        texts += [match.shown(seat) for seat in range(match.seats)] + [str(match.payoffs)]
    return texts


@pytest.mark.parametrize("id", GAMES)
def test_a_match_is_a_function_of_its_seed_and_moves(id):
    before = random.getstate()
    alone = whole(id, GAMES[id], False)
    assert random.getstate() == before
    assert alone == whole(id, GAMES[id], True) and len(set(alone)) > 3
    assert all(len(text) < 20_000 for text in alone)


def test_a_match_is_cut_off():
    source = task_source("pettingzoo", {"id": "chess_v6", "max_turns": 3})
    match = source.tools["match"].args["make"]()
    match.begin(0)
    for move in ("[e2e4]", "[e7e5]", "[g1f3]"):
        match.move(move)
    assert match.turn is None and match.payoffs == [0.0, 0.0] and "cut off after 3 moves" in match.reason


# ---- as a task


def context(source, replies, letters, **more):
    tools = {name: tool() for name, tool in source.tools.items()}
    return scripted_context(source.program, replies, letters, tools=tools, **more)


def first_free(text: str, _: int) -> str:
    return "[" + text.rpartition("you may [")[2].partition("]")[0] + "]"


def test_the_policy_plays_every_seat_against_itself(letters):
    source = task_source("pettingzoo", {})
    at = context(source, first_free, letters)
    (group,) = asyncio.run(episodes(at, [RolloutRequest(source.train(0), 2, key="k")]))
    for e in group.episodes:  # X has 0, 2, 4 and 6
        assert e.status == "done" and e.answer == "win"
        assert [(t.key, t.learn) for t in e.trajectories] == [("k/first", "main"), ("k/second", "main")]
    found = asyncio.run(score(source.defaults["judge"], [group], at))["reward"]
    assert sorted((s.value, s.parts["success"]) for s in found.values()) == [(-1.0, 0.0)] * 2 + [(1.0, 1.0)] * 2


def test_three_seats_of_the_policy_are_three_roles(letters):
    source = task_source("pettingzoo", {"id": "texas_holdem_v4", "config": "num_players=3"})
    at = context(source, lambda *_: "[call]" if "[call]" in _[0].rpartition("you may")[2] else "[check]", letters)
    (group,) = asyncio.run(episodes(at, [RolloutRequest(source.train(0), 1, key="k")]))
    (e,) = group.episodes
    assert e.status == "done", e.why
    assert [t.role for t in e.trajectories] == ["first", "second", "third"]
    payoffs = [e.tree.notes[t.leaf.node]["payoff"] for t in e.trajectories]
    assert sum(payoffs) == 0 and max(payoffs) > 0


def test_against_a_random_opponent_one_seat_is_the_policys_and_it_rotates(letters):
    source = task_source("pettingzoo", {"opponent": "random"})
    at = context(source, first_free, letters)
    (group,) = asyncio.run(episodes(at, [RolloutRequest(source.train(0), 16, key="k")]))
    assert all(len(e.trajectories) == 1 for e in group.episodes)
    assert {e.trajectories[0].role for e in group.episodes} == {"first", "second"}


OPPONENT = """
def lowest(text, moves):
    assert text.endswith("\\n") and "you are O" in text
    return moves[0]


def broken(text, moves):
    raise RuntimeError("no idea")


def silent(text, moves):
    return 3


def wrong():
    return "[0]"
"""


def test_a_function_of_ones_own_is_a_fixed_opponent(letters, tmp_path):
    (tmp_path / "mine.py").write_text(OPPONENT)
    source = task_source("pettingzoo", {"opponent": f"{tmp_path}/mine.py:lowest"})
    assert source.files == (str(tmp_path / "mine.py"),)
    program = source.program.replace(rotate=False)
    tools = {name: tool() for name, tool in source.tools.items()}
    at = scripted_context(program, ["[8]", "[7]", "[6]"], letters, tools=tools)
    e = asyncio.run(episodes(at, [RolloutRequest(source.train(0), 1)]))[0].episodes[0]
    assert e.answer == "win" and "O 3 6\n1 4 7\n2 5 X" in full_text(e, letters)
    for name, why in (("broken", "no idea"), ("silent", "returned a int")):
        source = task_source("pettingzoo", {"opponent": f"{tmp_path}/mine.py:{name}"})
        e = asyncio.run(episodes(context(source, first_free, letters), [RolloutRequest(source.train(0), 1)]))
        assert e[0].episodes[0].status == "error" and why in e[0].episodes[0].why


def test_methods_play_it_and_are_measured_against_random():
    run_config = plan(grpo(), "pettingzoo")
    assert run_config.method.stage.programs["main"] == play(second="policy", rotate=False)
    assert run_config.method.decode["main"] == play(second="random", rotate=True)
    against = plan(grpo(), "pettingzoo", {"opponent": "expert"}).method
    assert against.stage.programs["main"] == play(second="expert", rotate=True) and "main" not in against.decode
    own = plan(spiral(opponent="past"), "pettingzoo", {"id": "leduc_holdem_v4"}).method
    assert own.stage.programs["main"] == play(second="past", rotate=True)
    assert own.decode["main"] == play(second="random", rotate=True)


def test_demonstrations_are_legal_moves_after_what_was_shown():
    source = task_source("pettingzoo", {"noise": 0.0})
    assert source.demos is not None
    for item in (source.demos(i) for i in range(40)):
        assert item.data[0] in item.prompt.rpartition("you may")[2], item
    seeds = {source.train(i).tags["seed"] for i in range(300)}
    assert len(seeds) == 300 and not seeds & {t.tags["seed"] for t in source.test}
    assert not any(source.demos(i).tags["slip"] for i in range(20))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("id=tictactoe_v4", "did you mean tictactoe_v3"),
        ("id=tictactoe_v3 config=size=4", "game tictactoe_v3: cannot be made with size=4"),
        ("opponent=nobody", "no opponent is called 'nobody'"),
        ("id=rps_v2 opponent=expert", "no opponent is called 'expert'"),
        ("opponent=nowhere.py:f", "no such file"),
        ("opponent=mine.py:wrong", "cannot be called with (text, moves)"),
        ("opponent=mine.py:absent", "defines no absent"),
        ("max_turns=99", "max_turns must be at most 60"),
        ("noise=2", "noise must be a share"),
    ],
)
def test_what_is_wrong_is_one_line(words, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OPPONENT)
    assert main(["train", "grpo", "--task", "pettingzoo", "--set", *words.split()]) == 2
    error = capsys.readouterr().err.strip()
    assert why in error and "\n" not in error


def test_an_engine_that_raises_is_named():
    match = begun("tictactoe_v3")
    match.engine.step = lambda action: 1 / 0
    with pytest.raises(SelfteachError, match="game tictactoe_v3: the move raised ZeroDivisionError"):
        match.move("[0]")
