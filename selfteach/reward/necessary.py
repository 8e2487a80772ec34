"""How much of the thinking was needed: up to the first piece of it that states the right answer."""

from __future__ import annotations

import itertools
import re
from typing import Any

from ..core import Group, Part, Score, Scores, block
from ..core.text import cuts, pieces_before
from .answer import exact_match, golds
from .judged import verdicts

REFLECTION = ("wait", "but", "alternatively", "hmm", "let", "therefore", "then", "so")
STATED = r"(?:=|\bis)\s*{gold}(?!\w|[.,]\d)"


@block
async def necessary_prefix(
    *, group: Group, cast: Any, deadline: float, judge: Part | None = None, words: tuple[str, ...] = REFLECTION, stated: str = STATED
) -> Scores:
    """The verdict on each answer, and how many of its tokens were needed to think of it (DECS, 2509.25827, section 4.1).

    Thinking is what stands before </think> (without one: before <answer>). It is cut into chunks before each of `words`; the first that
    states a right answer, by the pattern `stated`, ends the necessary prefix; where none does, all of it was necessary.
    judge: a judge of answers (exact_match unless named). Columns, at the answer's end: `reward`, `necessary` and `thinking`, in sampled
    tokens; parts of a right answer's verdict: `necessary`, its share of the thinking.
    """
    own = [(e, t) for e in group.episodes for t in e.trajectories if t.learn is not None]
    found = await verdicts(judge or exact_match(), group, [(t.leaf, e.answer) for e, t in own], cast, deadline)
    out: Scores = {"reward": {}, "necessary": {}, "thinking": {}}
    for episode, t in own:
        at = episode.tree.places(t.leaf.node, t.leaf.offset)
        pieces = cast.tokenizer.spelled(episode.tree.id[at[episode.tree.chosen[at]]])
        needed, thinking = necessary_tokens(pieces, golds(group.request.task), words, stated)
        verdict = found[t.leaf]
        share = {"necessary": needed / thinking} if thinking and (verdict.value or 0.0) > 0 else {}
        out["reward"][t.leaf] = Score(verdict.value, {**verdict.parts, **share}, verdict.why, verdict.error)
        out["necessary"][t.leaf], out["thinking"][t.leaf] = Score(float(needed)), Score(float(thinking))
    return out


def necessary_tokens(pieces: list[bytes], gold: list[str], words: tuple[str, ...] = REFLECTION, stated: str = STATED) -> tuple[int, int]:
    """(tokens of the necessary prefix, tokens of the thinking) of an answer spelled in pieces.

    >>> necessary_tokens([b"4 - 1", b" = 3.", b" wait,", b" 3 is", b" right.", b"</think>", b"3"], ["3"])
    (2, 5)
    """
    thinking = next((n for tag in ("</think>", "<answer>") for n in [_before(pieces, tag)] if n is not None), len(pieces))
    thought = pieces[:thinking]
    marks = [0, *cuts(thought, rf"(?i)\b(?:{'|'.join(map(re.escape, words))})\b", before=True), thinking]
    states = [re.compile(stated.replace("{gold}", re.escape(g))) for g in gold]
    for a, z in itertools.pairwise(marks):
        text = b"".join(thought[a:z]).decode("utf-8", "replace")
        if any(s.search(text) for s in states):
            return z, thinking
    return thinking, thinking


def _before(pieces: list[bytes], tag: str) -> int | None:
    """How many pieces stand before the first that holds the beginning of a tag."""
    place = b"".join(pieces).find(tag.encode())
    return None if place < 0 else pieces_before(pieces, place)
