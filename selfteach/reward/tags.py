"""Rewards for form: does a text keep to its tags."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any, NamedTuple

from ..core import Score, block

PLACEHOLDERS = ("your thoughts", "your query", "your information", "your answer")


class Piece(NamedTuple):
    """One <tag>inside</tag> of a text."""

    tag: str
    inside: str


def pieces(text: str) -> list[Piece] | None:
    """A text as a row of closed, unnested tags with nothing but space between them; None where it is not one."""
    out: list[Piece] = []
    at = 0
    for m in re.finditer(r"<(\w+)>((?:(?!</?\w+>).)*)</\1>", text, flags=re.DOTALL):
        if text[at : m.start()].strip():
            return None
        out.append(Piece(m.group(1), m.group(2).strip()))
        at = m.end()
    return None if text[at:].strip() else out


@block
def search_format(*, text: str, thoughts: int = 8) -> Score:
    """SSRL's format score (Fan et al. 2025, appendix): 0 unless the text is well formed, else richer for more thoughts, up to a share.

        F = min(T / 2, 1) * min(T, S + 1) / max(T, S + 1)        T thoughts, S searches

    Well formed: only the four tags, from <think> to </answer>, at least four of them, none empty or left as a placeholder, a
    query in one line, every search followed at once by its information, as many of one as of the other, at most `thoughts` thoughts.
    """
    why, value = "", 0.0
    row = pieces(text.strip())
    if row is None:
        why = "tags are nested, left open, or have text between them"
    else:
        why = _fault(row, thoughts)
        t, s = sum(p.tag == "think" for p in row), sum(p.tag == "search" for p in row)
        if not why:
            value = min(0.5 * t, 1.0) * min(t, s + 1) / max(t, s + 1)
    return Score(value, {"format": value}, why)


def _fault(row: list[Piece], thoughts: int) -> str:
    """What is wrong with a row of tags, or nothing."""
    tags = [p.tag for p in row]
    strange = sorted(set(tags) - {"think", "search", "information", "answer"})
    after = [tags[n + 1] if n + 1 < len(tags) else "" for n, tag in enumerate(tags) if tag == "search"]
    faults = {
        f"strange tags: {', '.join(strange)}": bool(strange),
        "it does not run from <think> to </answer>": not tags or tags[0] != "think" or tags[-1] != "answer",
        "fewer than four tags": len(tags) < 2,  # an opening and a closing one each
        "an empty tag": any(not p.inside for p in row),
        "a placeholder left in": any(w in p.inside.lower() for p in row for w in PLACEHOLDERS),
        "a query of more than one line": any("\n" in p.inside for p in row if p.tag == "search"),
        "a search without its information": any(a != "information" for a in after) or tags.count("search") != tags.count("information"),
        f"more than {thoughts} thoughts": tags.count("think") > thoughts,
    }
    return next((fault for fault, true in faults.items() if true), "")


@block
def action_score(*, path: Any, cast: Any, formed: float = 0.1, found: float = 0.1, nothing: str = "nothing found.") -> Score:
    """Immediate rewards of an episode that searches, summed over its actions: for each that is well formed, and each search that finds.

        R = formed (well-formed actions - [it ends without an answer]) + found (searches that found something)

    A well-formed action is a closed <search> of one line that was answered, or a closed <answer>, neither of them empty; `nothing` is the
    answer of a search that found nothing. Information that the policy wrote itself answers nothing. It pays for more searches whether
    they help or not, which is what a gate is for. Parts: steps (R), completed (it ends with an answer).
    """
    text = ""
    for own, run in groupby(range(path.prompt, len(path.ids)), key=lambda i: bool(path.chosen[i])):
        piece = cast.tokenizer.decode(path.ids[list(run)])
        text += piece.replace("<information>", "<own>") if own else piece
    asked = re.findall(r"<search>((?:(?!</?search>)[^\n])*)</search>\s*<information>(.*?)</information>", text, flags=re.DOTALL)
    informed = [answer.strip() for query, answer in asked if query.strip()]
    answers = [a for a in re.findall(r"<answer>((?:(?!</?answer>).)*)</answer>", text, flags=re.DOTALL) if a.strip()]
    done = bool(answers) and text.rstrip().endswith("</answer>")
    value = formed * (len(informed) + len(answers) - (not done)) + found * sum(a != nothing for a in informed)
    return Score(value, {"steps": value, "completed": float(done)})
