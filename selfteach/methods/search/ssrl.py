"""SSRL: self-search RL, and the answer-only GRPO that it is measured against."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...reward.answer import exact_match
from ...reward.combine import weighted
from ...reward.tags import search_format
from ...rollout.search import entropy_guided, search_agent, self_search
from ...rollout.single import single
from ..objective.grpo import grpo

DECODE = {"self": self_search(), "search": search_agent(answerer="search"), "entropy_guided": entropy_guided()}


@method(
    family="search",
    paper="2508.10874",
    catalogue=1,
    claim=Claim(
        (
            Check("accuracy", "self", "answer_only", by=0.0),
            Check("accuracy", "self", "format_only", by=0.0),
            Check("accuracy", "self", "no_mask", by=0.0),
            Check("accuracy", "self", "no_format", by=0.0),
            Check("accuracy+search", "self", "accuracy of self", by=0.05),
            Check("accuracy+entropy_guided", "self", "accuracy+search of self", by=-0.05, scale="ratio"),
            Check("calls+entropy_guided", "self", "calls+search of self", by=0.20, relation="<", scale="ratio"),
            Check("pass@64", "self", "pass@8 of self", by=0.0),
        ),
        arms={
            "answer_only": "answer_only",
            "format_only": ("ssrl", {"format": 1.0}),
            "no_mask": ("ssrl", {"mask": False}),
            "no_format": ("ssrl", {"format": 0.0}),
        },
        task="atlas",
        steps=40,
        because="a model that writes both queries and what they find learns to draw on what it knows, and a real engine then fits in unchanged",
    ),
)
def ssrl(groups: int = 48, rollouts: int = 5, format: float = 0.1, mask: bool = True, beta: float = 0.001) -> Method:
    """Self-search RL: in one generation the policy thinks, asks, writes what the search finds, and answers.

        R = (1 - format) * exact match + format * F, F the score of its form; GRPO with the <information> spans left out of every term

    Fan et al. 2025. Plugged into a real engine afterwards: `decode` holds the ways to (always, or where the policy is unsure).
    """
    return (
        grpo(groups=groups, rollouts=rollouts, beta=beta)
        .but(
            programs={"main": self_search()},
            reward=(weighted(parts=((1 - format, exact_match()), (format, search_format()))),),
            credit=(each(mask=("information",) if mask else ()), norm()),
        )
        .with_(decode=DECODE)
    )


@method(family="search", paper="2508.10874")
def answer_only(groups: int = 48, rollouts: int = 5, beta: float = 0.001) -> Method:
    """SSRL's baseline: GRPO on an answer given at once, with no thought and no search; the reward is exact match alone."""
    return grpo(groups=groups, rollouts=rollouts, beta=beta).but(programs={"main": single(prefix="<answer>")})
