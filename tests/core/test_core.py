"""The core: names, blocks, methods as values, addresses, the tree, batches and scores."""

from __future__ import annotations

import importlib.metadata
import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfteach import plan
from selfteach.core import (
    BadCheckpoint,
    BadValue,
    Block,
    Column,
    Example,
    Method,
    Ref,
    RolloutRequest,
    Sampling,
    Score,
    Segment,
    Seq,
    Stage,
    Task,
    Term,
    Token,
    Tree,
    UnknownName,
    Update,
    block,
    collate,
    from_json,
    method,
    to_json,
)
from selfteach.core import registry as registries
from selfteach.core.batch import Batch
from selfteach.core.blocks import _needs, initial_state
from selfteach.core.claim import arm_parts
from selfteach.core.errors import nearest
from selfteach.core.random_keys import generator, key, uniform
from selfteach.core.registry import Registry, blocks, load_file, methods
from selfteach.methods.grpo import grpo

quick = settings(max_examples=40, deadline=None, derandomize=True)

# ---- names


def test_nearest_names_are_the_near_ones_or_the_whole_list():
    assert nearest("gpro", ["grpo", "dapo_x", "rlhf"]) == "did you mean grpo?"
    assert nearest("gpro", ["grpo", "ppo"]) == "did you mean grpo or ppo?"
    assert nearest("zzz", ["b", "a"]) == "there are: a, b"
    assert (
        nearest("norm", ["batch_norm_of_rewards", "x"]) == "did you mean batch_norm_of_rewards?"
    )  # a part of the name counts
    assert nearest("q", []) == "there are: "
    assert nearest("q", [f"a{i:02}" for i in range(40)]).endswith("a29, ...")


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(UnknownName, match=r"no method is called 'grpoo'; did you mean .*grpo"):
        methods.get("grpoo")
    with pytest.raises(UnknownName, match=r"no block is called 'clip_ratio'; did you mean .*clipped_ratio"):
        blocks.get("clip_ratio")


def test_a_name_can_be_taken_once():
    table: Registry[Any] = Registry("thing")
    one, two = lambda: 1, lambda: 2
    assert table.add("a", one) is one
    assert table.add("a", one) is one  # the same again is no second thing
    two.__qualname__ = "another"
    with pytest.raises(BadValue, match="two things are called 'a'"):
        table.add("a", two)


@pytest.mark.parametrize("kind", ["block", "method", "task"])
def test_two_files_cannot_register_one_name(kind, tmp_path):
    text = {
        "block": "from selfteach.core import block\n@block\ndef taken_{k}(*, reward):\n    return reward\n",
        "method": "from selfteach.core import method\n@method(family='t')\n"
        "def taken_{k}(a: int = 1):\n    return None\n",
        "task": "from selfteach.core import task\n@task\ndef taken_{k}(a: int = 1):\n    return None\n",
    }[kind].format(k=kind)
    for name in ("first", "second"):
        (tmp_path / f"{kind}_{name}.py").write_text(text)
    load_file(tmp_path / f"{kind}_first.py")
    load_file(tmp_path / f"{kind}_first.py")  # the same file again is fine
    try:
        with pytest.raises(
            BadValue, match=rf"two {kind}s are called 'taken_{kind}'.*{kind}_first.py.*{kind}_second.py"
        ):
            load_file(tmp_path / f"{kind}_second.py")
    finally:
        getattr(registries, kind + "s")._entries.pop(f"taken_{kind}")


def test_a_users_file_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(BadValue, match=r"nowhere.py: no such file"):
        load_file(tmp_path / "nowhere.py")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(BadValue, match=r"broken.py: importing it raised ZeroDivisionError"):
        load_file(tmp_path / "broken.py")
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(BadValue, match=r"ends in \.py"):
        load_file(tmp_path / "text.txt")
    (tmp_path / "broken.py").write_text("x = 1\n")
    load_file(tmp_path / "broken.py")  # mended, it loads


def test_entry_points_of_the_group_are_imported(monkeypatch):
    seen = []

    class MethodEntry:
        def load(self):
            seen.append(self)

    def points(group):
        return [MethodEntry()] if group == "selfteach" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", points)
    monkeypatch.setattr(registries, "_loaded", set())
    assert "no such method" not in methods
    assert len(seen) == 1


def test_methods_and_tasks_need_defaults():
    with pytest.raises(BadValue, match="'x' needs a default"):
        method(family="t")(lambda x: None)
    with pytest.raises(BadValue, match="'x' needs a default"):
        registries.task(lambda x: None)


# ---- blocks


def test_a_signature_is_the_contract():
    @block
    def trial(*, logp: Token, adv: Seq, seq: Token, state: int, low: float = 0.1, names: tuple[str, ...] = ()) -> Seq:
        """First line.

        More.
        """
        return logp.sum() + adv.sum() * low

    try:
        part = trial(low=0.5)
        assert isinstance(part, Block) and str(part) == "trial(low=0.5)" and part.doc == "First line."
        assert part.needs == {"logp": "token", "adv": "seq", "seq": "token", "state": "token"}
        assert part.columns == {"logp": "token", "adv": "seq", "seq": "token"}
        assert part.hyper_parameters == {"low": 0.5, "names": ()}
        assert part.unit == "seq" and part.scope == "seq"
        assert part(logp=np.ones(2), adv=np.ones(2), seq=None, state=0) == 3.0  # 2 + 2 * 0.5
        assert (
            trial(logp=np.ones(2), adv=np.ones(2), seq=None, state=0, low=1.0) == 4.0
        )  # given what it needs, it gives the value
        assert trial(names=["a"]) == trial(names=("a",))  # a list from JSON is the tuple it was
        renamed = part.reading(adv="past_adv")
        assert renamed.columns == {"logp": "token", "past_adv": "seq", "seq": "token"} and part.reads == {}
        assert str(renamed) == "trial(low=0.5).reading(adv='past_adv')"
        assert part.replace(low=0.7).hyper_parameters["low"] == 0.7 and part.hyper_parameters["low"] == 0.5
        with pytest.raises(UnknownName, match=r"no hyper-parameter of trial is called 'lo'; did you mean low\?"):
            trial(lo=1)
        with pytest.raises(UnknownName, match="did you mean low"):
            part.replace(lov=1)
        with pytest.raises(UnknownName, match=r"no column of trial is called 'advs'; did you mean adv\?"):
            part.reading(advs="x")
        with pytest.raises(BadValue, match="has no initial one"):
            initial_state(part)
    finally:
        blocks._entries.pop("trial")


@pytest.mark.parametrize(
    "fn,scope",
    [
        (lambda *, logp: logp, "token"),
        (lambda *, logp, step: logp, "step"),
        (lambda *, logp, seq: logp, "seq"),
        (lambda *, reward, seq, group: reward, "group"),
        (lambda *, reward, win, lose: reward, "pair"),
        (lambda *, adv, group, batch: adv, "batch"),
    ],
)
def test_asking_for_an_index_asks_that_its_rows_stay_together(fn, scope):
    assert Block(fn).scope == scope
    assert set(_needs(fn)) == set(Block(fn).needs)


def test_blocks_take_named_arguments_only():
    with pytest.raises(BadValue, match="'rest' is not"):
        block(lambda *rest: rest)


# ---- methods as values


@pytest.mark.parametrize("name", list(methods))
def test_every_method_is_a_value(name):
    made = methods.get(name)()
    again = from_json(json.loads(json.dumps(to_json(made))))
    assert again == made and again.diff(made) == []
    rows = dict(made.table())
    assert len(rows) == len(made.table()), "two rows of one place"
    assert all(place in str(made) for place in rows)
    assert str(made).startswith("method")


@pytest.mark.parametrize("name", list(methods))
def test_every_method_says_what_it_is(name):
    entry = methods.get(name)
    assert entry.family and entry.paper and entry.doc
    assert all(p.default is not p.empty for p in entry.hyper_parameters.values())
    for arm in [] if entry.claim is None else entry.claim.arms.values():
        arm, hyper_parameters, _ = arm_parts(arm)
        methods.get(arm)(**hyper_parameters)  # an arm that cannot be built is no arm


def test_a_diff_names_the_places_that_differ():
    assert grpo().diff(grpo()) == []
    assert grpo().diff(grpo(groups=7)) == [("groups", "16", "7")]
    ((place, here, there),) = grpo(beta=0.1).diff(grpo())
    assert (place, there) == ("update.term.1", None) and here is not None and here.startswith("0.1 * kl(")


def test_a_method_changes_by_slots_that_exist():
    assert grpo().replace(groups=3).stage.groups == 3
    with pytest.raises(UnknownName, match=r"no slot of a stage is called 'rewards'; did you mean reward\?"):
        grpo().replace(rewards=())
    with pytest.raises(UnknownName, match=r"no hyper-parameter of grpo is called 'bta'; did you mean beta\?"):
        methods.get("grpo")(bta=1)
    wider = grpo().override(tools={"t": grpo().stage.select})
    assert set(wider.models) == {"policy", "ref"} and set(wider.tools) == {"t"} and grpo().tools == {}


def test_what_cannot_go_to_json_is_refused():
    with pytest.raises(TypeError, match="cannot go to JSON"):
        to_json(grpo().replace(until=lambda history: True))
    with pytest.raises(TypeError, match="not a registered block"):
        to_json(grpo().replace(until=Block(lambda *, history: True)))
    with pytest.raises(UnknownName, match="no block is called 'gone_block'"):
        from_json({"block": "gone_block", "args": {}, "reads": {}})
    with pytest.raises(BadCheckpoint, match="'Gadget' is unknown"):
        from_json({"kind": "Gadget"})
    with pytest.raises(UnknownName, match=r"no field of Sampling is called 'tempature'; did you mean temperature\?"):
        from_json({"kind": "Sampling", "tempature": 1.0})


@pytest.mark.parametrize(
    "value",
    [
        Task("t", "p", ("a",), ("d",), tags={"kind": "demo", "hops": 2}),  # a user's own word `kind`
        {"tuple": 1},
        {"block": "norm"},
        {"map": [1]},
        {1: "a", 2: {"kind": (1, 2)}},
        {},
        [(), (1, [2, (3,)])],
        RolloutRequest(Task("t", (1, 2)), 3, sampling=Sampling(0.5, stop=("x",)), help={"hint": "h"}),
        Segment((1, 2), "main", 1, None),
        None,
        float("inf"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_json_brings_values_back(value):
    again = from_json(json.loads(json.dumps(to_json(value))))
    assert again == value and type(again) is type(value)


def test_bad_values_name_themselves():
    for make, says in [
        (lambda: Sampling(temperature=-1), "temperature"),
        (lambda: Sampling(top_p=0), "top_p"),
        (lambda: Sampling(top_k=-1), "top_k"),
        (lambda: Sampling(max_tokens=0), "max_tokens"),
        (lambda: Update(("policy",), (), epochs=0), "epochs"),
        (lambda: Term(abs), "must be a block"),
    ]:
        with pytest.raises(BadValue, match=says):
            make()
    assert Update("policy", ()).params == ("policy",)  # one name is a tuple of one
    assert not Sampling(top_p=0.9).untruncated and not Sampling(top_k=1).untruncated and Sampling().untruncated


# ---- addresses


def test_an_address_is_the_same_in_another_process():
    code = (
        "from selfteach.core.random_keys import *; "
        "print(key(1,'a',2.5,None), uniform(key('x'),3), generator(0,'g').integers(1000))"
    )
    env_hash = {"PYTHONHASHSEED": "123"}
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env_hash, cwd="."
    ).stdout.split()
    assert [int(output[0]), float(output[1]), int(output[2])] == [
        key(1, "a", 2.5, None),
        float(uniform(key("x"), 3)),
        generator(0, "g").integers(1000),
    ]


def test_words_of_an_address_are_kept_apart():
    addresses = [(1, 2), (12,), ("1", 2), ("12",), (1, "2"), (2, 1), (1, 2, 0), (1, (2,)), (-1, 2), (1.0, 2), (True, 2)]
    assert len({key(*a) for a in addresses}) == len(addresses)


def test_uniforms_are_uniform_and_neighbours_are_strangers():
    n = 1 << 16
    by_count = uniform(key("seed"), np.arange(n))  # one key, draw after draw
    by_key = uniform(np.array([key("k", i) for i in range(4096)], np.uint64), 0)  # first draws of neighbouring keys
    by_number = uniform(np.arange(n, dtype=np.uint64), 0)  # even keys that are small numbers
    for u in (by_count, by_key, by_number):
        assert u.min() >= 0 and u.max() < 1
        counts = np.histogram(u, 64, (0, 1))[0]
        chi = ((counts - len(u) / 64) ** 2 / (len(u) / 64)).sum()  # 63 degrees: mean 63, deviation sqrt(126) = 11.2
        assert 25 < chi < 120
        for lag in (1, 2, 64):
            assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 5 / math.sqrt(len(u))
    assert (
        uniform(key("a"), 5) == uniform(np.array([key("a")], np.uint64), np.arange(6))[5]
    )  # broadcast is the same draw
    assert float(uniform(2**64 - 1, 2**63)) < 1
    square = uniform(np.arange(64, dtype=np.uint64)[:, None], np.arange(64))
    assert len(np.unique(square)) == 64 * 64, "a draw of one key is another draw of its neighbour"


# ---- the tree


@st.composite
def growth(draw):
    """A random tree as a list of (parent, cut or None, ids)."""
    sizes: list[int] = []
    out = []
    for i in range(draw(st.integers(1, 12))):
        parent = draw(st.integers(-1, i - 1))
        cut = draw(st.none() | st.integers(0, sizes[parent])) if parent >= 0 else None
        ids = draw(st.lists(st.integers(0, 99), min_size=0, max_size=5))
        sizes.append(len(ids))
        out.append((parent, cut, ids))
    return out


@quick
@given(growth(), st.integers(0, 5))
def test_paths_are_what_a_naive_tree_says(nodes, offset):
    tree, whole = Tree(), []  # whole[k]: all ids from the root to the end of k
    for k, (parent, cut, ids) in enumerate(nodes):
        assert tree.add(parent, ids, cut=cut) == k
        before = (
            []
            if parent < 0
            else whole[parent][
                : len(whole[parent]) - len(nodes[parent][2]) + (len(nodes[parent][2]) if cut is None else cut)
            ]
        )
        whole.append([*before, *ids])
    for k, (_, _, ids) in enumerate(nodes):
        assert tree.id[tree.places(k)].tolist() == tree.ids_to(k).tolist() == whole[k]
        upto = min(offset, len(ids))
        shorter = whole[k][: len(whole[k]) - len(ids) + upto]
        assert tree.id[tree.places(k, upto)].tolist() == tree.ids_to(k, upto).tolist() == shorter
    assert tree.id.tolist() == [i for _, _, ids in nodes for i in ids]
    assert sum(tree.size(k) for k in range(len(nodes))) == len(tree)


def test_a_tree_keeps_columns_through_growth():
    tree = Tree()
    root = tree.add(-1, range(200))
    tree.add(
        root,
        [7] * 300,
        action_mask=True,
        logp=[-0.25] * 300,
        version=4,
        recorded={"entropy": np.full(300, 0.5)},
        span="think",
    )
    last = tree.add(root, [8] * 700, cut=3, role="judge")
    assert (
        tree.logp[200:500].tolist() == [-0.25] * 300
        and np.isnan(tree.logp[:200]).all()
        and np.isnan(tree.logp[500:]).all()
    )
    assert (
        tree.recorded["entropy"][200:500].tolist() == [0.5] * 300 and np.isnan(tree.recorded["entropy"][500:1200]).all()
    )
    assert tree.action_mask.sum() == 300 and set(tree.version[200:500]) == {4} and set(tree.version[:200]) == {-1}
    assert tree.id[tree.places(last)].tolist() == [0, 1, 2] + [8] * 700
    tree.mark(last, 1, 3, "information")
    assert [tree.spans[s] for s in tree.span[500:505]] == ["", "information", "information", "", ""]
    assert tree.roles[tree.by[last]] == "judge"


def test_a_tree_refuses_lengths_that_differ():
    with pytest.raises(BadValue, match="2 tokens with 1 log-prob"):
        Tree().add(-1, [1, 2], logp=[0.0])


# ---- batches


def small_batch(prefix: str = "") -> tuple[Batch, dict[str, Tree]]:
    """Two groups, three sequences of 2, 1 and 3 learned tokens; the third has two turns with an observation between
    them.
    """
    trees: dict[str, Tree] = {}
    examples = []
    for n, (group, turns) in enumerate([("g", [[10, 11]]), ("g", [[20]]), ("h", [[30], [31, 32]])]):
        tree = trees[f"{prefix}e{n}"] = Tree()
        node = tree.add(-1, [1, 2])
        parts = [Segment(Ref(f"{prefix}e{n}", node), None)]
        for t, ids in enumerate(turns):
            if t:
                node = tree.add(node, [99, 98])
                parts.append(Segment(Ref(f"{prefix}e{n}", node), "main"))  # nobody chose these: no rows
            node = tree.add(
                node,
                ids,
                action_mask=True,
                logp=[-float(i) for i in ids],
                version=3,
                sampling=Sampling(temperature=0.5),
            )
            parts.append(Segment(Ref(f"{prefix}e{n}", node), "main"))
        examples.append(
            Example(
                tuple(parts),
                "policy",
                group,
                f"s{n}",
                given={"reward": ("seq", float(n))},
                preferred_over=(2,) if n == 0 else (),
            )
        )
    return collate(examples, trees.__getitem__), trees


def test_gather_makes_flat_rows():
    b, _ = small_batch()
    assert b.get("id").tolist() == [10, 11, 20, 30, 31, 32]
    assert b.get("pos").tolist() == [2, 3, 2, 2, 5, 6]
    assert b.ids.tolist() == [1, 2, 10, 11, 1, 2, 20, 1, 2, 30, 99, 98, 31, 32]
    assert b.start.tolist() == [0, 4, 7, 14] and b.ids[b.place].tolist() == b.get("id").tolist()
    assert b.get("seq").tolist() == [0, 0, 1, 2, 2, 2]
    assert b.index["step"].tolist() == [0, 0, 1, 2, 3, 3] and b.index["seq"].tolist() == [0, 1, 2, 2]
    assert b.index["group"].tolist() == [0, 0, 1] and b.get("group").tolist() == [0, 0, 0, 1, 1, 1]
    assert b.get("old_logp").tolist() == [-10, -11, -20, -30, -31, -32]
    assert set(b.get("temperature")) == {0.5} and set(b.get("version")) == {3}
    assert [b.size(u) for u in ("token", "step", "seq", "group", "batch", "episode", "pair")] == [6, 4, 3, 2, 1, 3, 1]
    assert b.index["win"].tolist() == [0] and b.index["lose"].tolist() == [2]
    assert b.lengths().tolist() == [2, 1, 3]


def test_coarse_is_broadcast_to_fine_and_fine_to_coarse_refused():
    b, _ = small_batch()
    assert b.get("reward", "seq").tolist() == [0, 1, 2]
    assert b.get("reward", "token").tolist() == [0, 0, 1, 2, 2, 2] and b.get("reward", "step").tolist() == [0, 1, 2, 2]
    b.put("bias", "batch", np.array([7.0]))
    assert b.get("bias", "token").tolist() == [7.0] * 6 and b.get("bias", "group").tolist() == [7.0, 7.0]
    b.put("mine", "episode", np.array([1.0, 2.0, 3.0]))
    assert b.get("mine", "seq").tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="id is per token: reduce it to per seq"):
        b.get("id", "seq")
    with pytest.raises(TypeError, match="mine is per episode"):
        b.get("mine", "group")  # episodes and groups: neither is part of the other
    with pytest.raises(BadValue, match=r"no column 'advantage' in the batch; it has .*id"):
        b.get("advantage")
    with pytest.raises(BadValue, match=r"column x: 2 values for 3 rows \(per seq\)"):
        b.put("x", "seq", [1.0, 2.0])


def test_unknown_is_nan():
    tree = Tree()
    root = tree.add(-1, [1])
    sampled = tree.add(
        root, [2, 3], action_mask=True, logp=[-1, -2], recorded={"entropy": np.array([0.5, 0.25])}, sampling=Sampling()
    )
    greedy = tree.add(root, [4], action_mask=True, sampling=Sampling(temperature=0.0))
    cut = tree.add(root, [5], action_mask=True, logp=[-1.0], sampling=Sampling(top_p=0.9))
    ref = lambda node: Segment(Ref("e", node), "main" if node else None)  # noqa: E731
    b = collate(
        [
            Example(
                (ref(root), ref(sampled)),
                "policy",
                "a",
                "1",
                given={"reward": ("seq", 1.0), "margin": ("token", [0.1, 0.2])},
            ),
            Example((ref(root), ref(greedy)), "policy", "a", "2"),
            Example((ref(root), ref(cut)), "policy", "b", "3", given={"reward": ("seq", None)}),
            Example((ref(root), Segment((6, 7), "fix")), "policy", "b", "4"),
        ],
        {"e": tree}.__getitem__,
    )
    nan = math.nan
    for name, values in {
        "old_logp": [-1, -2, nan, -1, nan, nan],
        "old_entropy": [0.5, 0.25, nan, nan, nan, nan],
        "temperature": [1, 1, nan, nan, 1, 1],  # greedy or cut: the learner cannot draw from it again
        "margin": [0.1, 0.2, nan, nan, nan, nan],
        "version": [-1] * 6,
    }.items():
        assert np.array_equal(b.get(name), values, equal_nan=True), name
    assert np.array_equal(b.get("reward", "seq"), [1, nan, nan, nan], equal_nan=True)
    assert b.loss_streams == ("main", "fix") and b.on(["fix"]).tolist() == [False] * 4 + [True] * 2


def test_gather_refuses_what_cannot_be_rows():
    tree = Tree()
    tree.add(-1, [1, 2], action_mask=True)
    find = {"e": tree}.__getitem__
    whole = Segment(Ref("e", 0), "main")
    with pytest.raises(BadValue, match="example x: it has no segments"):
        collate([Example((), "policy", "k", "x")], find)
    with pytest.raises(BadValue, match="its first token is learned"):
        collate([Example((whole,), "policy", "k", "x")], find)
    ahead = Segment((9,), None)
    with pytest.raises(BadValue, match="column reward has 1 values per seq, its rows need 2 per token"):
        given = [{"reward": ("seq", 1.0)}, {"reward": ("token", [1, 2])}]
        collate([Example((ahead, whole), "policy", "k", "x", given=g) for g in given], find)
    with pytest.raises(BadValue, match="can give token, step or seq columns, not group"):
        collate([Example((ahead, whole), "policy", "k", "x", given={"reward": ("group", 1.0)})], find)
    assert collate([], find).size("token") == 0
    assert collate([Example((ahead,), "policy", "k", "x")], find).size("seq") == 0


def naive(b: Batch) -> list[dict[str, Any]]:
    """Every row with all it belongs to, by name: what `take` must leave as it is."""
    rows = []
    for i in range(b.size("token")):
        s = int(b.get("seq")[i])
        text = b.ids[b.start[s] : b.start[s + 1]].tolist()
        rows.append(
            {
                "name": b.names[s],
                "model_role": b.model_role[s],
                "text": text,
                "at": int(b.place[i] - b.start[s]),
                "step": (b.names[s], int(b.get("step")[i] - b.get("step")[b.get("seq") == s].min())),
                **{
                    c: float(b.get(c)[i])
                    for c in ("id", "pos", "old_logp", "reward", "of_step", "of_group", "of_episode")
                },
            }
        )
    return rows


def wide_batch(seed: int) -> Batch:
    """Random sequences of several turns, in groups and episodes of any size, with pairs and columns of every unit."""
    rng = np.random.default_rng(seed)
    tree_of: dict[str, Tree] = {}
    examples = []
    count = int(rng.integers(1, 7))
    for n in range(count):
        name = f"e{rng.integers(0, 3)}"
        tree = tree_of.setdefault(name, Tree())
        node = tree.add(-1, rng.integers(0, 9, rng.integers(1, 4)))
        parts = [Segment(Ref(name, node), None)]
        for _ in range(rng.integers(1, 4)):
            node = tree.add(
                node, rng.integers(10, 99, rng.integers(1, 4)), action_mask=bool(rng.random() < 0.8), logp=None
            )
            tree._tokens["logp"][tree.begin[node] : len(tree)] = -rng.random(tree.size(node))
            parts.append(Segment(Ref(name, node), "main"))
        preferred_over = tuple({int(j) for j in rng.integers(0, count, 2)} - {n})
        examples.append(
            Example(
                tuple(parts),
                "policy",
                f"g{rng.integers(0, 3)}",
                f"s{n}",
                given={"reward": ("seq", float(n))},
                preferred_over=preferred_over,
            )
        )
    b = collate(examples, tree_of.__getitem__)
    b.put("of_step", "step", rng.random(b.size("step")))
    b.put("of_group", "group", rng.random(b.size("group")))
    b.put("of_episode", "episode", rng.random(b.size("episode")))
    return b


@quick
@given(st.integers(0, 10_000), st.data())
def test_take_keeps_rows_and_all_they_belong_to(seed, data):
    b = wide_batch(seed)
    rows = np.array(data.draw(st.lists(st.booleans(), min_size=b.size("token"), max_size=b.size("token"))), bool)
    part, want = b.take(rows), [r for r, keep in zip(naive(b), rows, strict=True) if keep]
    got = naive(part)
    for r in (*want, *got):
        r.pop("step")  # steps are counted anew
    assert got == want
    assert set(part.names) == {r["name"] for r in want}
    pairs = {(b.names[w], b.names[z]) for w, z in zip(b.index["win"], b.index["lose"], strict=True)}
    assert {(part.names[w], part.names[z]) for w, z in zip(part.index["win"], part.index["lose"], strict=True)} == {
        (w, z) for w, z in pairs if w in part.names and z in part.names
    }
    for unit in ("step", "seq", "group", *(["batch"] if want else [])):
        assert sorted(set(part.index[unit].tolist())) == list(range(part.size(unit))), (
            f"{unit} is not counted from 0 without gaps"
        )
    same = [(b.get("step")[i] == b.get("step")[j]) for i in np.flatnonzero(rows) for j in np.flatnonzero(rows)]
    new = [(part.get("step")[i] == part.get("step")[j]) for i in range(len(want)) for j in range(len(want))]
    assert same == new


@quick
@given(st.integers(0, 10_000), st.data())
def test_take_sequences_is_take_of_their_rows(seed, data):
    b = wide_batch(seed)
    selected = np.array(data.draw(st.lists(st.booleans(), min_size=b.size("seq"), max_size=b.size("seq"))), bool)
    by_mask, by_number = b.take_sequences(selected), b.take_sequences(np.flatnonzero(selected))
    assert by_mask.names == by_number.names == tuple(n for n, keep in zip(b.names, selected, strict=True) if keep)
    assert naive(by_mask) == [r for r in naive(b) if r["name"] in by_mask.names]


def test_taking_all_gives_the_batch_and_taking_none_an_empty_one():
    b, _ = small_batch()
    assert b.take(np.ones(6, bool)) is b
    empty = b.take(np.zeros(6, bool))
    assert [empty.size(u) for u in ("token", "step", "seq", "group", "pair", "episode")] == [0] * 6 and len(
        empty.ids
    ) == 0


def test_pairs_skip_examples_without_a_row():
    tree = Tree()
    root = tree.add(-1, [1])
    a, z = (tree.add(root, [i], action_mask=True) for i in (2, 3))
    read, learn = Segment(Ref("e", root), None), lambda n: Segment(Ref("e", n), "main")
    examples = [
        Example((read,), "policy", "k", "silent", preferred_over=(1,)),
        Example((read, learn(a)), "policy", "k", "a", preferred_over=(0, 2)),
        Example((read, learn(z)), "policy", "k", "z"),
    ]
    b = collate(examples, {"e": tree}.__getitem__)
    assert b.names == ("a", "z") and b.index["win"].tolist() == [0] and b.index["lose"].tolist() == [1]


# ---- scores


@pytest.mark.parametrize(
    "given,value,says",
    [
        (1, 1.0, None),
        (0.25, 0.25, None),
        (True, 1.0, None),
        (np.float32(0.5), 0.5, None),
        (np.bool_(False), 0.0, None),
        (Score(2), 2.0, None),
        (Score(None, error="asked nobody"), None, "asked nobody"),
        ("1.0", None, "returned str '1.0', not a number"),
        (torch.tensor(1.0), None, "returned Tensor 'tensor(1.)'"),
        (np.array([1.0]), None, "returned ndarray"),
        (None, None, "returned None"),
        (math.nan, None, "value is nan"),
        (math.inf, None, "value is inf"),
        (Score(-math.inf), None, "value is -inf"),
        (Score("high"), None, "value is a str"),
        (Score(1.0, {"form": torch.tensor(1.0)}), None, "part 'form' is a Tensor"),
        ([1.0], None, "returned list"),
    ],
    ids=str,
)
def test_a_score_is_a_number_or_a_recorded_error_never_a_zero(given, value, says):
    score = Score.of(given)
    assert score.value == value and (value is None or type(score.value) is float)
    assert says is None if score.error is None else says in score.error


def test_two_stages_of_one_name_are_refused():
    one = grpo()
    with pytest.raises(BadValue, match="method grpo: two stages are called 'main', and what blocks store"):
        replace(one, stages=(one.stage, one.stage))


def test_a_stage_says_what_it_has():
    stage = grpo().stage
    assert replace(stage, groups=2) != stage and isinstance(grpo(), Method) and isinstance(stage, Stage)
    assert Column("seq", 1).unit == "seq"


# ---- where a method runs


def test_a_method_runs_at_its_own_home_or_else_on_the_task_of_its_claim():
    made = plan("ssrl")
    assert (made.task, made.settings.steps) == ("atlas", 40)  # `make train`, as README says
    assert plan("truthrl").task_options == {"abstain": 0.1}
    assert plan("truthrl", task_options={"abstain": 0.3}).task_options == {"abstain": 0.3}
    assert plan("truthrl", "chain_sum").task_options == {}
    assert (plan("grpo").task, plan("reinforce").task) == ("digit_sum", "atlas")
