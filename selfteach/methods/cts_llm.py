"""CTS-LLM, a zero-shot planner on dialogue graphs (Väth & Vu 2024, arXiv 2410.05821).

In conversational tree search experts write what a system may say, as the nodes of a graph. Here a language model is not
trained to walk it: it says which nodes may be what the user seeks, and the graph does the rest. All paths but those to
these nodes are pruned; where the paths that are left agree the planner goes on without a word, and where they part it
says the node's text and reads the reply. What is said is always a text of the graph, and an edited graph needs no
training.

    candidates = the k labels whose nodes' texts are nearest to what the user said           (retriever)
    goals      = {answers at or below n : the model names n of these}, all where it names none
    at a node  : one edge leads to a goal -> along it, silently;   several -> say the text, and follow the reply
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from ..core import (
    BadValue,
    Claim,
    Home,
    Method,
    ModelContext,
    RolloutContext,
    RolloutRequest,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.dialog_graph import SAY, SKIP, DialogGraph, question
from ..reward.payoff import episode_return
from ..rollout.play import append_message, first_prompt
from .grpo import grpo

Selector = Literal["model", "retriever"]


@method(family="search", paper="2410.05821", catalogue=351, home=Home("dialog_graph", 40))
def cts_llm(
    groups: int = 16,
    rollouts: int = 8,
    selector: Selector = "model",
    top: int = 8,
    prune: bool = True,
    turns: int = 16,
    beta: float = 0.0,
) -> Method:
    """A planner that walks a dialogue graph as a model's choice of nodes says, and says its texts alone.

    Väth & Vu 2024, from summaries; graphs, users and the baseline's actions (say, or skip along an edge) as in the
    authors' repository for conversational tree search (2303.10227). The paper's own code is the branch llm-policy of
    DigitalPhonetics/conversational-tree-search, which could not be had. The trained agent that it is compared with
    learns values of actions by Q-learning; here it is GRPO's. The paper's planner is not trained: that is this method
    after no steps. GRPO of what the model names is an addition here, for models that are too small to know it.

    The model is shown the candidates' labels, which stand for ids and texts, and names those that the user means; a
    reply is matched to an edge in the same way. Where it names none, the user is guided from where the planner stands.
    A user who means a topic and no answer is told the notes on the way; others are not. A number that was said needs
    not be asked for. The retriever counts shared words in place of a sentence encoder, so of the three words that users
    have for everything it does not know one.

    selector  retriever: its first label is taken, and a reply's nearest edge; no model is asked
    top       labels that the model is asked about at first; 0: all that share a word
    prune     False: every text on the way is said, and every reply awaited
    """
    planner = plan_dialog(selector=selector, top=top, prune=prune, turns=turns)
    return (
        grpo(groups=groups, rollouts=rollouts, beta=beta)
        .replace(programs={"main": planner}, reward=(episode_return(),))
        .override(decode={"main": planner})
    )


@block
async def plan_dialog(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    tool: str = "environment",
    selector: Selector = "model",
    top: int = 8,
    prune: bool = True,
    turns: int = 16,
) -> str:
    """Walk the graph of a conversation (tools/dialog_graph.py), whose goal is not looked at; see `cts_llm`.

    Notes as `act` does. Raises BadValue for a task of another environment.
    """
    play = rollout.tool(tool)
    episode, observation = await play(request.task)
    graph = getattr(episode.env, "graph", None)
    if not isinstance(graph, DialogGraph):
        raise BadValue(f"plan_dialog: task {request.task.id} has no dialogue graph; take the task dialog_graph")
    said = observation.partition("\n")[0]
    candidates, ask = graph.ranked(said, top), selector == "model"
    asked = question(candidates) if ask and candidates else ""
    context = rollout.policy.begin(first_prompt(request, f"{said}\n{asked}"))
    labels = await meant(context, candidates) if asked else [] if ask else candidates[:1]
    nodes = [n for label in labels for n in graph.labelled(label)]
    goals = {answer for n in nodes for answer in graph.below(n)} or set(graph.below(0))
    is_guided = all(graph.nodes[n].kind == "question" for n in nodes)
    days, at, rewards, done = number_in(said), 0, list[float](), False
    while not done and len(rewards) < turns:
        edge = silent_edge(graph, at, goals, days, is_guided) if prune else None
        if edge is None:
            step = await play((episode, SAY))
            done = step.done
            rewards.append(step.reward)
            if done:
                break
            said = step.observation
            days = number_in(said) or days
            edge = silent_edge(graph, at, goals, days, False)
            if graph.nodes[at].kind == "question":
                edges = list(graph.nodes[at].edges)
                if ask:
                    append_message(request, context, said + question(edges))
                chosen = await meant(context, edges) if ask else []
                edge = chosen[0] if chosen else graph.nearest(at, said)
        child = graph.child(at, edge or "")
        if child is None:  # a number that was not given
            break
        rewards.append((await play((episode, f"{SKIP} {edge}"))).reward)
        at = child
        goals = goals & set(graph.below(at)) or set(graph.below(at))
    success = await play((episode, None))
    context.note(episode_return=float(sum(rewards)), success=float(success), turns=len(rewards))
    context.close()
    return "success" if success else "failure"


async def meant(context: ModelContext, labels: Sequence[str]) -> list[str]:
    """Those of some labels that the model names, which has just been asked about them."""
    turn = await context.sample(stop=() if context.is_conversation else ("\n",))
    if not turn.text.endswith("\n") and not context.is_conversation and turn.status != "limit":
        context.append("\n")
    named = [name.strip() for name in turn.text.split(",")]
    return [label for label in labels if label in named]


def silent_edge(graph: DialogGraph, at: int, goals: Collection[int], days: int, is_guided: bool) -> str | None:
    """The edge along which to go without a word: of a note, where the user is not guided; of a variable, where the days
    are known; of a question, where one edge alone leads to a goal. None: its text is to be said.
    """
    node = graph.nodes[at]
    if node.kind == "note":
        return None if is_guided else "on"
    if node.kind == "variable":
        return str(days) if days else None
    alive = [edge for edge, child in node.edges.items() if set(goals) & set(graph.below(child))]
    return alive[0] if len(alive) == 1 else None


def number_in(said: str) -> int:
    """The number that a user said; 0: none.

    >>> number_in("user rail price 5"), number_in("user rail price")
    (5, 0)
    """
    return next((int(w) for w in reversed(said.split()) if w.isdigit()), 0)


AGENT = ("grpo", {"beta": 0.0}, {"steps": 80})

cts_llm.claim = Claim(
    (
        premise("accuracy", "self", 0.6, fails_at=0.5),  # the model knows what users' words mean
        premise("accuracy/split=seen", "agent", "start", by=0.2, fails_at=0.9),  # its own graph can be learned
        premise("accuracy/split=unseen", "agent", "accuracy/split=seen of agent", by=0.1, relation="<", fails_at=0.05),
        # what agrees is passed in silence, and nothing is invented
        mechanism("search/said", "self", "unpruned", by=0.2, relation="<", scale="ratio", fails_at=0.0),
        mechanism("search/invented", "self", 0.001, relation="<", fails_at=0.01),
        mechanism("accuracy", "self", "retriever", by=0.1, fails_at=0.95),  # it understands what words do not say
        outcome("accuracy/split=unseen", "self", "agent", by=0.05, fails_at=0.97),
        outcome("accuracy/split=edited", "self", "agent", by=0.05, fails_at=0.97),
        outcome("accuracy/split=seen", "self", "agent", by=0.05, relation=">=", fails_at=1.0),
    ),
    arms={
        "agent": AGENT,
        "unpruned": ("cts_llm", {"prune": False}),
        "retriever": ("cts_llm", {"selector": "retriever"}),
    },
    settings={"steps": 0},
    regime="dialog",
    first_seed=300,
    corrected="on seeds 200 to 207 the agent learned at 3e-4, half of the rate that is best for it: holds",
    idea=("main.program.main", "decode", "settings.steps"),
    because="what a graph says is read from the graph, so that no graph has to be learned",
)
