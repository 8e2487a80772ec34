"""What SSRL's paper (Fan et al. 2025, arXiv 2508.10874) shows beside its main claim, each as an experiment of `ssrl`.

Its pieces are exchanged one at a time (`ssrl_variant`). `selfteach reproduce ssrl --full` measures them all, and writes
them on one page.
"""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

SIMULATOR_HOT = "on seeds 200 to 207 ZeroSearch's simulator wrote at temperature 1, where its release has 0.8: "
# Noise in a quarter of the documents, as its authors begin, ends all searching here: a policy of this size soon knows
# by heart what it is asked in training. 60 steps of the policy are too few for their share to grow in.
EASIER_AT_FIRST = ("zerosearch", {"noise_start": 0.0, "noise_steps": 120})
LESSONS = 150  # steps in which another provider is taught
EXPERIMENTS = {
    "engines": Claim(
        (
            premise("accuracy", "search_r1", "start", by=0.2, fails_at=0.9),  # to search with the engine can be learned
            mechanism("accuracy+search", "self", "accuracy of self", by=0.02, fails_at=0.99),  # it takes the engine up
            outcome("accuracy+search", "self", "accuracy of search_r1", relation=">=", by=0.05, fails_at=1.0),
            outcome("accuracy+search", "self", "accuracy of zerosearch", relation=">=", by=0.05, fails_at=1.0),
            outcome("accuracy", "self", "accuracy+self of search_r1", by=0.03, fails_at=0.98),
        ),
        arms={"search_r1": "search_r1", "zerosearch": EASIER_AT_FIRST},
        regime="search",
        equal="tokens",
        idea=("main.*", "simulator.*", "weights.*", "models.*", "decode.*"),
        because="what was trained in its own memory searches as well with a real engine as what was trained with one, "
        "or with a model in its place, at as many sampled tokens",
        first_seed=300,
        corrected=f"{SIMULATOR_HOT}mechanism shown",
    ),
    "seconds": Claim(
        (
            premise("accuracy", "search_r1", "start", by=0.2, fails_at=0.9),
            mechanism("sum:tokens/sampled", "self", "zerosearch", by=0.2, scale="ratio", fails_at=1e9),  # none waits
            outcome("accuracy+search", "self", "accuracy of search_r1", relation=">=", by=0.05, fails_at=1.0),
            outcome("accuracy+search", "self", "accuracy of zerosearch", by=0.03, fails_at=0.98),
        ),
        arms={"search_r1": "search_r1", "zerosearch": EASIER_AT_FIRST},
        regime="search",
        equal="seconds",
        idea=("main.*", "simulator.*", "weights.*", "models.*", "decode.*"),
        because="without an engine or a simulator to wait for, the same time trains further",
        first_seed=300,
        corrected=f"{SIMULATOR_HOT}holds",
    ),
    "sampling": Claim(
        (
            premise("pass@1024", "self", "accuracy of self", by=0.1, fails_at=0.95),  # it holds more than it says
            mechanism("pass@64", "self", "pass@8 of self", by=0.05, fails_at=0.96),
            outcome("pass@1024", "self", "pass@64 of self", by=0.02, fails_at=0.99),
            # votes do not tell what is right of what is often said
            outcome("maj@1024", "self", "maj@8 of self", relation="<=", by=0.05, fails_at=0.0),
            outcome("pass@1024", "self", "maj@1024 of self", by=0.1, fails_at=0.95),
        ),
        settings={"steps": 0},
        regime="search",
        because="more samples find ever more of what a model knows, along exp(a k^b), and a vote does not choose it",
    ),
    "protocols": Claim(
        (
            mechanism("length", "reflect", "self", by=0.2, scale="ratio", fails_at=1e6),  # more is thought
            mechanism("length", "longer", "self", by=0.05, scale="ratio", fails_at=1e6),
            # of twice as many tokens an answer half as many answers
            outcome("pass@64", "self", "pass@32 of reflect", relation=">=", by=0.02, fails_at=1.0),
            outcome("pass@64", "self", "pass@32 of longer", relation=">=", by=0.02, fails_at=1.0),
            outcome("pass@64", "self", "pass@64 of turns", relation=">=", by=0.02, fails_at=1.0),
        ),
        arms={p: ("ssrl_variant", {"protocol": p}) for p in ("turns", "reflect", "longer")},
        settings={"steps": 0},
        regime="search",
        idea=("main.program.main",),
        because="of as many tokens, single answers find as much as longer thoughts, rounds of search and reflection",
    ),
    "labels": Claim(
        (
            premise("early:reward/label", "ttrl", 0.5, fails_at=0.4),  # most votes are right where they take over
            mechanism("late:reward/hit", "ttrl", 0.6, fails_at=0.5),  # its rewards are right where labels' would be
            outcome("accuracy", "ttrl", "half", by=0.03, fails_at=0.98),
            outcome("accuracy", "ttrl", "self", relation=">=", by=0.03, fails_at=1.0),
        ),
        arms={
            "ttrl": ("ssrl_variant", {"labels": False, "labelled_steps": 60}),
            "half": ("ssrl", {}, {"steps": 60}),
        },
        settings={"steps": 120},
        regime="search",
        idea=("main.select", "main.reward", "labelled", "labelled.*"),
        differs={"settings.steps": "half is what TTRL begins with, and ends there"},
        because="what has learned to search itself goes on by the vote of what it says, on the test's own questions",
    ),
    "provider": Claim(
        (
            premise("accuracy", "frozen", "start", by=0.03, fails_at=0.98),  # it can be learned from
            # what it writes for itself is written by what has learned
            mechanism("late:dropped/masked:information", "self", 128.0, fails_at=0.0),
            outcome("accuracy", "self", "frozen", by=0.03, fails_at=0.98),
            outcome("accuracy+search", "self", "accuracy+search of frozen", relation=">=", by=0.03, fails_at=1.0),
        ),
        arms={"frozen": ("ssrl_variant", {"provider": "frozen"})},
        regime="search",
        idea=("main.program.main", "main.reward*", "weights.provider", "models.provider"),
        because="a policy that writes its own information learns what to write, and a frozen one does not",
        first_seed=500,
        corrected=(
            "on seeds 200 to 207 the provider was first asked with a query alone, which a small start has never seen by"
            " itself; there and on seeds 300 to 307 the format score did not see what it wrote, so that who never"
            " searched was paid more: not tested here"
        ),
    ),
    "other_provider": Claim(
        (
            premise("accuracy", "other", "start", by=0.03, fails_at=0.98),  # it can be learned from
            mechanism("late:dropped/masked:information", "self", 128.0, fails_at=0.0),
            outcome("accuracy", "self", "other", by=0.03, fails_at=0.98),
            # what is left to one that never wrote its information is its own memory, or an engine
            outcome("accuracy", "self", "accuracy+self of other", by=0.03, fails_at=0.98),
            outcome("accuracy+search", "self", "accuracy+search of other", relation=">=", by=0.03, fails_at=1.0),
        ),
        arms={"other": ("ssrl_variant", {"provider": "other", "provider_steps": LESSONS}, {"steps": 60 + LESSONS})},
        regime="search",
        idea=("main.program.main", "main.reward*", "weights.provider", "models.provider", "provider", "provider.*"),
        differs={"settings.steps": "the policy has 60 steps in both; the other model is taught before"},
        because="what a policy writes for itself teaches it more than what another model writes for it",
        first_seed=500,
    ),
    "smollm2": Claim(
        (
            premise("accuracy", "self", "start", by=0.1, fails_at=0.95),  # there is a way to be found
            premise("accuracy", "answer_only", 0.15, fails_at=0.1),  # direct answers are no straw man
            # of each answer, a token at least of what it wrote to itself is left out: it searches, and the mask acts
            mechanism("late:dropped/masked:information", "self", 64.0, fails_at=0.0),
            outcome("accuracy", "self", "answer_only", by=0.05, fails_at=0.97),
            outcome("pass@16", "self", "start", relation=">=", by=0.05, fails_at=1.0),  # nothing is lost that it knew
            outcome("accuracy+search", "self", "accuracy of self", by=0.05, fails_at=0.97),
            outcome("accuracy+search", "self", "accuracy of search_r1", relation=">=", by=0.05, fails_at=1.0),
        ),
        # No arm thinks without a search: this model goes on to a query, which ends the answer; of 48 none was right, so
        # that there is nothing to reinforce. The direct answer without training is where `answer_only` begins.
        arms={
            "search_r1": ("search_r1", {}, {"final_eval_k": 0}),
            "answer_only": ("answer_only", {}, {"final_eval_k": 0, "task.ask": "answer"}),
        },
        # Of the regime's held-out places there are 250 questions, of these 370; 300 are asked.
        settings={
            "task.held_out": 0.3,
            "steps": 20,
            "eval_every": 5,
            "final_eval_k": 16,
            "final_eval_pass_at_k_tasks": 64,
        },
        regime="real_search",
        equal="tokens",
        idea=("main.program.main", "main.reward.0", "main.credit.0", "main.update.0.term.0", "decode.*"),
        differs={
            "task.ask": "who is to answer at once is shown answers; after searches it gives none that is right",
            "settings.final_eval_k": "what more samples find is asked of SSRL alone",
        },
        because="what a model learned in pre-training it can search for, and then use a real engine without training",
        first_seed=300,
    ),
    "algorithms": Claim(
        (
            premise("accuracy", "self", "start", by=0.2, fails_at=0.9),
            mechanism("late:reward/format", "self", "early:reward/format of self", by=0.05, fails_at=1.0),
            outcome("accuracy", "self", "ppo", by=0.03, fails_at=0.98),
            outcome("accuracy", "self", "reinforce_pp", by=0.03, fails_at=0.98),
            outcome("accuracy", "dapo", "self", relation=">=", by=0.03, fails_at=1.0),
        ),
        arms={a: ("ssrl_variant", {"algorithm": a}) for a in ("dapo", "ppo", "reinforce_pp")},
        regime="search",
        idea=("main.select", "main.credit*", "main.update*", "main.groups", "main.rollouts", "weights.*", "models.*"),
        because="groups are a better baseline than a critic or the batch, also for self-search",
    ),
}
