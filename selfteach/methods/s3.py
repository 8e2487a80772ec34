"""s3, a search agent trained apart from the generator (Jiang et al. 2025, arXiv 2505.14146).

Only the searcher learns. A frozen generator answers from the documents that it chose, and the reward is how much better
that answer is than the generator's from what the question itself finds, and in the released code also how good it is.

    R = GenAcc(G(Q, D_s3)) - GenAcc(G(Q, D_RAG))      gain beyond RAG, in the paper
    R = 2 GenAcc(G(Q, D_s3)) - GenAcc(G(Q, D_RAG))    in the released code, and here
"""

from __future__ import annotations

from ..core import (
    Claim,
    Home,
    Method,
    ModelRole,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Stage,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.search_record import searches_of
from ..core.tagged_text import last_between
from ..curriculum.boundary import along_boundary, remember_solved
from ..curriculum.select import pool
from ..reward.answer import states_gold
from ..rollout.generator import last_object, naive_rag, search_for_generator
from ..rollout.search import RETRY, search_agent
from .ppo import ppo


@method(
    family="search",
    paper="2505.14146",
    catalogue=322,
    home=Home("factworld", 40, {"ways": (0.1, 0.3, 0.2, 0.1, 0.1, 0.2), "irrelevant": 0.4, "says": "judge"}),
)
def s3(
    groups: int = 120,
    rollouts: int = 1,
    turns: int = 3,
    decoupled: bool = True,
    filtered: bool = True,
    naive: bool = True,
    select: bool = True,
    questions: int = 384,
    beta: float = 0.001,
    critic_lr: float = 1e-3,
    minibatches: int = 4,
    critic_epochs: int = 1,
) -> Method:
    """PPO on a searcher whose documents a frozen generator answers from, rewarded by the gain beyond naive RAG.

        R = 2 GenAcc(G(Q, D_s3)) - GenAcc(G(Q, D_RAG))

    Jiang et al. 2025, section 3, with the reward of the released code (main_ppo.py adds GenAcc to the gain; beside the
    KL penalty that counts). D_s3 is what the searcher accepted of each of up to `turns` results, in order and without
    repeats, all of a result that it did not judge (theirs puts those last); it begins from D_RAG, what the question
    itself finds (`naive`). After the last result it has one more turn, to judge it. GenAcc is 1 where the prediction
    contains a gold answer; their second judge, a language model, is left out. A first stage leaves questions alone that
    naive RAG answers wrongly, of a pool of `questions` (`filtered`), so that the second term is 0; filtered=False takes
    all, and subtracts it. Here a searcher accepts or rejects a result as a whole, by <judge>, in place of up to three
    numbers of documents, and an answer in place of another query ends the search; generator and searcher begin as the
    same model, the generator stays frozen. Theirs samples at a temperature of 0.6. decoupled=False: the policy answers
    itself and is rewarded for that (Search-R1's PPO); its invalid turns are answered, a searcher's end
    the search. The decoder `reader` has another generator, a rule, `naive_rag` no searcher, and `naive_reader` neither.
    """
    base = ppo(
        groups=groups,
        rollouts=rollouts,
        beta=beta,
        critic_lr=critic_lr,
        minibatches=minibatches,
        critic_epochs=critic_epochs,
    )
    searcher = search_for_generator(turns=turns, naive=naive, select=select, last=True, accepts=ACCEPTED)
    program = searcher.replace(rag=not filtered) if decoupled else search_agent(turns=turns, invalid=RETRY)
    reward = gain_beyond_rag(rag=not filtered) if decoupled else gain_beyond_rag(scale=1.0)
    base = base.replace(programs={"main": program}, reward=(reward,)).override(
        weights={"generator": WeightSpec()},
        models={"generator": ModelRole(("generator",))},
        decode={
            "main": searcher if decoupled else program,
            "reader": searcher.replace(generator=last_object()),
            "naive_reader": search_for_generator(turns=0, select=False, generator=last_object()),
            "naive_rag": naive_rag(accepts=ACCEPTED),
        },
    )
    if not filtered:
        return base
    at_once = min(questions, max(512, 8 * groups))
    probe = Stage(
        name="probe",
        select=pool(size=questions),
        programs={"main": naive_rag(accepts=ACCEPTED)},
        reward=(gain_beyond_rag(scale=1.0, says="rag"),),
        credit=(remember_solved(),),
        updates=(),
        groups=at_once,
        rollouts=1,
        until=-(-questions // at_once),
    )
    base = base.replace(select=along_boundary(questions=questions, mix="hard"))
    return base.override(stages=(probe, *base.stages))


@block
def gain_beyond_rag(
    *, group: RolloutGroup, context: RewardContext, scale: float = 2.0, rag: bool = False, says: str = "answer"
) -> Scores:
    """`scale` times GenAcc of the answer, less (`rag`) that of the generator from what the question finds.

    Parts: answer (or `says`), whether it is right; searches; with `rag` also rag, whether naive RAG is.
    """
    task, out = group.request.task, Scores({"reward": {}})
    for episode in group.episodes:
        right = states_gold(episode.answer, task)
        texts = [context.text(t.leaf) for t in episode.trajectories if t.role == "rag"]
        naive = max((states_gold(last_between(text, "answer", None), task) for text in texts), default=False)
        for t in episode.learned:
            parts = {says: float(right), "searches": float(len(searches_of(episode, t, context)))}
            parts |= {"rag": float(naive)} if rag else {}
            out["reward"][t.leaf] = Score(scale * right - float(rag and naive), parts)
    return out


ACCEPTED = "<judge> Yes</judge>"  # after each document that a tiny generator reads: it was shown judged results alone
WHOLE = {"minibatches": 1, "critic_epochs": 4}  # one update of the policy to a batch, as in all regimes

s3.claim = Claim(
    (
        premise("accuracy+naive_rag", "self", 0.8, relation="<", fails_at=0.9),  # naive RAG leaves something to gain
        # the generator reads what it is given about as well as a rule does
        premise("accuracy", "self", "accuracy+reader of self", relation=">=", by=0.1, fails_at=1.0),
        mechanism("late:reward/answer", "self", "early:reward/answer of self", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "accuracy+naive_rag of self", by=0.1, fails_at=0.95),
        # the generator answers greedily, and so it must be beaten greedily as well
        outcome("accuracy", "self", "end_to_end", by=0.02, fails_at=0.99),
        outcome("greedy", "self", "end_to_end", by=0.02, relation=">=", fails_at=1.0),
        outcome("accuracy+reader", "self", "accuracy+naive_reader of self", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "unfiltered", by=0.02, fails_at=0.99),
        # what the authors ablate: that it chooses documents, and that it begins from naive RAG
        outcome("accuracy", "self", "unselected", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "from_nothing", by=0.02, fails_at=0.99),
    ),
    arms={
        "end_to_end": ("s3", {"decoupled": False, "filtered": False, **WHOLE}),
        "unfiltered": ("s3", {"filtered": False, **WHOLE}),
        "unselected": ("s3", {"select": False, **WHOLE}),
        "from_nothing": ("s3", {"naive": False, **WHOLE}),
    },
    args=WHOLE,
    regime="search_doubted",
    settings={"eval_every": 12},
    idea=("main.program", "main.reward", "main.select", "probe", "probe.*", "decode"),
    because="what is learned is to find and choose documents, which any generator can answer from",
)
