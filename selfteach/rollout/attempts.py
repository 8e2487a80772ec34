"""The prompts of second attempts and of answers that begin from earlier ones, for programs and for demonstrations."""

from __future__ import annotations

from typing import Any

from ..core.tagged_text import last_between

RETRY = "There might be an error in the solution above. Correct it, and give the final solution."
COMPARE = "Solutions above may be wrong. Compare them, and give the final solution."


def retry_prompt(prompt: str, instruction: str = RETRY) -> str:
    """The text between two attempts: the instruction, and the question again."""
    return f"\n{instruction}\n{prompt}"


def prompt_with(prompt: Any, text: str) -> Any:
    """A prompt, text or messages, with a text after the question; as it is where the text is empty."""
    if isinstance(prompt, str) or not text:
        return prompt + text if text else prompt
    *before, last = prompt
    return [*before, {**last, "content": f"{last['content']}\n{text}"}]


def workspace_prompt(prompt: Any, workspace: str, instruction: str = COMPARE) -> Any:
    r"""The prompt of an answer that begins from a workspace of drafts; as it is where the workspace is empty.

    In a text the question stands once more behind the instruction, for models that have seen no instructions.

    >>> workspace_prompt("add 2 3 =\n", "<answer> 5</answer>", "Better?")
    'add 2 3 =\n<answer> 5</answer>\nBetter?\nadd 2 3 =\n'
    """
    again = retry_prompt(prompt, instruction) if isinstance(prompt, str) else f"\n{instruction}"
    return prompt_with(prompt, workspace + again if workspace else "")


def answer_in(text: str) -> str:
    """The answer in a text: what its last <answer>...</answer> holds; all of it where there is none.

    >>> answer_in("<answer> 5</answer>"), answer_in(" 2 + 3 is 5 ")
    ('5', '2 + 3 is 5')
    """
    return last_between(text, "answer", text.strip())


def without_thought(text: str) -> str:
    """What a text says after its last thought, all of it where there is none.

    >>> without_thought("<think> 2 + 3 = 5.</think><answer> 5</answer>")
    '<answer> 5</answer>'
    """
    return text.rpartition("</think>")[2]


def progress_prompt(prompt: Any, number: int, progress: str, last: bool = False) -> Any:
    r"""The prompt of the round after round `number`, of which the progress alone is left; `last`: of the final round.

    >>> progress_prompt("add 2 3 4 =\n", 1, "5 4", last=True)
    'add 2 3 4 =\nProgress in round 1: "5 4" Current round is the final round. Provide a final answer.\n'
    """
    final = " Current round is the final round. Provide a final answer." if last else ""
    said = f'Progress in round {number}: "{progress}"{final}'
    return prompt_with(prompt, f"{said}\n" if isinstance(prompt, str) else said)
