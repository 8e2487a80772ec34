"""Answers with a verdict on them, from which a model learns to verify."""

from __future__ import annotations

from ..core import BadValue, Block, RolloutContext, RolloutRequest, block
from ..core.answers import for_verifier, reference_answer
from ..core.scoring import accepts

YES, NO = "1", "0"  # the verdicts


@block
async def read_judgement(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    judge: Block | None = None,
    noise: float = 0.0,
    question: bool = False,
    model_role: str = "verifier",
) -> str:
    """The answer at `answer` of the request's help, as a verifier reads it, and `judge`'s verdict, which is learned.

        [question,] reference answer, answer, 1 or 0

    judge: a reward of answers, right from 1 on. noise: the chance that its verdict is turned into the other. Notes:
    label, the verdict, and flipped. Raises BadValue without a judge.
    """
    if judge is None:
        raise BadValue("read_judgement needs judge=, a reward of answers such as exact_match()")
    task, answer = request.task, request.help["answer"]
    right = accepts(judge, answer, task)
    flipped = bool(rollout.random("teacher").random() < noise)
    verdict = YES if right != flipped else NO
    read = for_verifier(reference_answer(task), answer)
    context = rollout.model_role(model_role).begin(task.prompt if question else read)
    if question:
        context.append(read)
    context.adopt(verdict)
    context.note(label=float(verdict == YES), flipped=float(flipped))
    context.close(learn=model_role)
    return verdict
