"""The prompt between two attempts, shared by the program that asks for a second and by demonstrations of one."""

from __future__ import annotations

RETRY = "There might be an error in the solution above. Correct it, and give the final solution."


def retry_prompt(prompt: str, instruction: str = RETRY) -> str:
    """The text between two attempts: the instruction, and the question again."""
    return f"\n{instruction}\n{prompt}"
