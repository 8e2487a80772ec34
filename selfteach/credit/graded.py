"""Composers for a reward model that is trained in the loop: labelled texts, and pairs of a certified answer and its corruption."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core import BadValue, Example, Group, Part, Ref, Segment, Task, block
from ..core.address import generator, key
from ..core.text import last_between
from . import recipe


@block
def labelled(*, groups: Sequence[Group], member: str = "rm") -> list[Example]:
    """Each closed trajectory as a text that `member` reads, with what was noted at its end as the column `label`; of one episode, the higher
    labelled are preferred to the lower."""
    label = {f"{e.id}:{t.leaf.node}": e.tree.notes[t.leaf.node]["label"] for g in groups for e in g.episodes for t in e.trajectories}
    found = recipe.examples(groups, member=member)
    of = {e.name: e.name.rsplit(":", 1)[0] for e in found}
    mates: dict[str, list[int]] = {}
    for i, e in enumerate(found):
        mates.setdefault(of[e.name], []).append(i)
    beats = [tuple(j for j in mates[of[e.name]] if label[found[j].name] < label[e.name]) for e in found]
    return [replace(e, given={**e.given, "label": ("seq", label[e.name])}, beats=b) for e, b in zip(found, beats, strict=True)]


@block
def certified_pairs(
    *, groups: Sequence[Group], cast: Any, certified: str = "rule", wrong: Part | None = None, member: str = "rm", tries: int = 4
) -> list[Example]:
    """Of each group an answer that a rule certifies, preferred to the same answer with its result changed (Cooper, 2508.05613, section 3.3).

    certified  the part of the reward that is 1 for what is surely right; one such answer a group is drawn, where there is any
    wrong      a reward that must not call the corruption right; after `tries` that it does, the pair is left out

    Both are the text that `member` read of the answer (an episode whose request's help `output` points to it; what it read after it is its
    span `reference`) and teach its stream by their last token. Their reward is 0 and their key their own, so that they weigh nothing where
    advantages are compared.
    """
    if wrong is None:
        raise BadValue("certified_pairs: it needs a reward that knows what is wrong, as in certified_pairs(wrong=exact_match())")
    about = {g.request.help["output"]: g for g in groups if "output" in g.request.help}
    out: list[Example] = []
    for group in groups:
        scores = group.scores.get("reward", {})
        sure = [at for at, s in scores.items() if s.parts.get(certified, 0.0) >= 1.0 and at in about]
        if not sure:
            continue
        at = min(sure, key=lambda ref: key("certified", ref.episode))
        episode = about[at].episodes[0]
        view = cast.path(episode.trajectories[0].leaf)
        ids, end = view.ids.tolist(), len(view.ids) - sum(s == "reference" for s in view.spans)
        prompt, said, reference = ids[: view.prompt], ids[view.prompt : end], ids[end:]
        bad = corrupted(cast.tokenizer.decode(said), group.request.task, wrong, (at.episode, "corrupt"), tries)
        if bad is None:
            continue
        texts = [(*prompt, *own, *reference) for own in (said, cast.tokenizer.encode(bad).tolist())]
        out += [_whole(text, member, f"{group.key}/certified", group, at, n) for n, text in enumerate(texts)]
        out[-2] = replace(out[-2], beats=(len(out) - 1,))
    return out


def _whole(ids: tuple[int, ...], member: str, own: str, group: Group, at: Ref, number: int) -> Example:
    parts = (Segment(ids[:-1], None), Segment(ids[-1:], member))
    given: dict[str, Any] = {"reward": ("seq", 0.0), "truncated": ("seq", 0.0)}
    return Example(parts, member, own, f"{at.episode}/certified:{number}", given=given, labels={"task": group.request.task.id, "role": member})


def corrupted(text: str, task: Task, wrong: Part, address: tuple[object, ...], tries: int = 4) -> str | None:
    """The text with the number in its last <answer> changed, from where it was last worked out (`= 9`) on; None where no try is wrong.

    The number is off by 1, 2 or 10 and not below 0, by a draw at the address.

    >>> from selfteach.reward.answer import exact_match
    >>> task = Task("t", "2 + 3 + 4 =", "9")
    >>> corrupted("2 + 3 = 5. 5 + 4 = 9.<answer> 9</answer>", task, exact_match(), (1,))
    '2 + 3 = 5. 5 + 4 = 7.<answer> 7</answer>'
    """
    answer = last_between(text, "answer", "")
    if not re.fullmatch(r"\d+", answer):
        return None
    draw = generator(*address)
    for _ in range(tries):
        other = str(abs(int(answer) + int(draw.choice([-10, -2, -1, 1, 2, 10]))))
        if float(wrong(answer=other, task=task).value or 0.0) < 1.0 and other != answer:
            worked = [m.start() for m in re.finditer(rf"(?<== ){answer}(?!\d)", text)]
            begin = worked[-1] if worked else text.rindex("<answer>")
            return text[:begin] + re.sub(rf"(?<!\d){answer}(?!\d)", other, text[begin:])
    return None
