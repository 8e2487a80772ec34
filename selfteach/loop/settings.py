"""Settings of a run: training, the warm start of a fresh model, evaluation.

Every field has its help text and range; the options of the command line, the docstrings and the checks come from them.
By name they form one flat list: `lr`, `warm_lr`, `final_eval_k`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

from ..cluster.resources import read_settings
from ..core.errors import BadValue, unknown
from ..core.method import MethodEntry
from ..core.settings import check, setting, settings
from ..learner.settings import LearnerSettings as LearnerSettings

if TYPE_CHECKING:
    from ..model.lora import LoraConfig


@settings
class RunSettings(LearnerSettings):
    """Settings of a run, whatever its method: those of its learner, the loop and the engine."""

    if TYPE_CHECKING:

        @property
        def given(self) -> tuple[str, ...]:
            """The names of the fields that it was made with (`core.settings`)."""
            ...

    device: str = setting("auto", "auto (a GPU where there is one), cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "precision of the learner's matmuls; weights and moments stay float32 (default: auto, bfloat16 on a GPU and"
        " float32 on a CPU)",
    )
    seed: int = setting(0, "random seed of the run; the same seed gives the same weights, bit for bit")
    budget: int | None = setting(None, "stop after this many sampled tokens", least=1)
    max_seconds: float | None = setting(
        None, "stop after this many seconds of training, evaluations not counted", above=0
    )
    threads: int = setting(
        0,
        "threads of matmuls; the same number gives the same bits (default: as many as the machine has cores)",
        least=0,
        most=1024,
    )
    staleness: int | None = setting(
        None,
        "versions by which rollouts may run ahead of learning, beside which they are then played; 0: none (default: the"
        " method's own, 0)",
        least=0,
    )
    interrupt: bool = setting(
        False,
        "of rollouts that run ahead: deliver new weights in the middle of answers, whose tokens are then of several"
        " versions; no two runs give the same bits (default: an answer is of one version)",
    )
    engine: Literal["builtin", "http", "vllm"] = setting(
        "builtin",
        "what samples: the built-in engine, servers at --url, or a vLLM that the run starts (docs/engines.md)",
    )
    url: tuple[str, ...] = setting(
        (), "addresses of the servers of --engine http, such as http://127.0.0.1:8000,http://127.0.0.1:8001"
    )
    engine_seconds: float = setting(600.0, "seconds that a server may take for one request", above=0)
    engine_start_seconds: float = setting(600.0, "seconds that a vLLM may take to start", above=0)
    vllm_python: str | None = setting(
        None, "the Python of the environment that has vLLM, for --engine vllm (default: this one)"
    )
    weights_folder: str | None = setting(
        None, "folder by which servers get weights, where they can read it (default: this machine's shared memory)"
    )
    vllm_args: str = setting("", "further options of `vllm serve`, as one text: '--max-num-seqs 128'")
    slots: int = setting(
        64, "sequences that the engine samples at once; of --engine http and vllm those in each server", least=1
    )
    engine_dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "precision of the engine's weights and KV cache; in bfloat16 its log-probs differ from the learner's by"
        " rounding (default: auto, bfloat16 on a GPU and float32 on a CPU)",
    )
    context: int | None = setting(
        None, "tokens of a context, prompt and turns together (default: the model's own, at most 2048)", least=2
    )
    max_tokens: int | None = setting(None, "tokens of a turn, at most (default: the task's own)", least=1)
    eval_every: int = setting(10, "steps between evaluations on held-out tasks; 0: none", least=0)
    eval_tasks: int = setting(96, "held-out tasks in each of these evaluations", least=1)
    eval_samples: int = setting(0, "samples of each of these tasks, besides the greedy answer", least=0)
    checkpoint_every: int = setting(10, "steps between checkpoints", least=1)
    keep: int = setting(2, "checkpoints to keep, the newest", least=1)
    max_unscored: float = setting(0.1, "fraction of trajectories without a reward above which the run stops", least=0)
    max_idle_steps: int = setting(
        20, "steps without a gradient after which a run that has never had one stops", least=1
    )
    max_logprob_mismatch: float = setting(
        0.1, "mean |log-prob of engine - log-prob of learner| in nats above which the run stops", least=0
    )
    mismatch_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        setting(
            "none",
            "importance weights where engine and learner compute other probabilities: truncated at mismatch_cap, or"
            " masked outside of mismatch_floor to mismatch_cap; by token or by sequence",
        )
    )
    mismatch_cap: float = setting(2.0, "largest importance weight of mismatch_correction", least=1)
    mismatch_floor: float = setting(0.5, "smallest ratio that a mask of mismatch_correction keeps", least=0)
    tool_seconds: float = setting(30.0, "seconds that a tool call may take", above=0)
    episode_turns: int = setting(64, "turns that an episode may sample, and calls of tools that it may make", least=1)
    episode_tokens: int = setting(4096, "tokens that an episode may sample", least=1)
    reward_seconds: float = setting(60.0, "seconds that a reward may take", above=0)
    cluster: Literal["none", "ray"] = setting(
        "none",
        "who places the run's processes: none, all are on this machine; ray: rollout workers, the learner's processes"
        " and reward workers are Ray's actors (docs/cluster.md)",
    )
    cluster_address: str | None = setting(
        None, "a Ray that runs, HOST:PORT or auto (default: one of the run's own, on this machine)"
    )
    cluster_file: str | None = setting(
        None, "a YAML or JSON file of settings, such as `rollout_workers: 4`; those given beside it come first"
    )
    cluster_seconds: float = setting(60.0, "seconds in which the cluster must give what is asked for", above=0)
    cluster_restarts: int = setting(
        3, "times that a lost learner begins again from a checkpoint before the run ends with an error", least=0
    )
    rollout_workers: int = setting(1, "of --cluster ray: processes that sample", least=1, most=4096)
    cpus_per_worker: float = setting(1.0, "CPUs of each of them, and threads", above=0)
    gpus_per_worker: float = setting(0.0, "GPUs of each of them", least=0)
    learner_cpus: float = setting(1.0, "of --cluster ray: CPUs of each process of the learner", above=0)
    learner_gpus: float = setting(0.0, "GPUs of each process of the learner", least=0)
    reward_workers: int = setting(
        0, "of --cluster ray: processes that call rewards and typed tools; 0: the run itself does", least=0, most=4096
    )
    cpus_per_reward_worker: float = setting(1.0, "CPUs of each of them", above=0)
    colocate: bool = setting(
        False,
        "rollout workers share the learner's GPUs, and give up their memory while it works (default: each has its own)",
    )
    lora_rank: int | None = setting(None, "train adapters of this rank (LoRA) instead of all weights", least=1)
    lora_alpha: float | None = setting(
        None, "alpha of the adapters, which are scaled by alpha / rank (default: twice the rank)"
    )
    lora_targets: tuple[str, ...] = setting(
        ("all-linear",), "linear layers that have adapters: q_proj,v_proj ..., or all-linear"
    )
    lora_dropout: float | None = setting(
        None, "dropout of the adapters' inputs in training (default: 0, or that of --adapter)"
    )
    lora_rslora: bool = setting(False, "scale the adapters by alpha / sqrt(rank) instead")
    lora_delivery: Literal["adapter", "merged"] = setting(
        "adapter",
        "of --engine vllm, what it gets: the adapter alone, beside the base that it holds; or all weights, the adapter"
        " merged in",
    )
    adapter: str | None = setting(
        None, "start from the adapter in this folder, in peft's layout; --model is then its base"
    )

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "lora_targets", tuple(self.lora_targets))
        object.__setattr__(self, "adam_betas", tuple(self.adam_betas))
        object.__setattr__(self, "url", tuple(self.url))
        shape = ("lora_alpha", "lora_targets", "lora_rslora")
        given = [n for n in shape if getattr(self, n) != RunSettings.__dataclass_fields__[n].default]
        if self.adapter is not None and (given or self.lora_rank is not None):
            raise BadValue(
                f"adapter: {self.adapter} has its own rank, alpha and targets;"
                f" leave {', '.join(given) or 'lora_rank'} out"
            )
        given += ["lora_dropout"] * (self.lora_dropout is not None)
        if self.lora_rank is None and self.adapter is None and given:
            raise BadValue(f"{given[0]}: applies to adapters only; give lora_rank too")

    @property
    def fresh_lora(self) -> LoraConfig | None:
        """The configuration of fresh adapters; None where all weights are trained, or adapters come from a folder."""
        if self.lora_rank is None:
            return None
        from ..model.lora import LoraConfig  # imported here, because settings alone need no torch

        return LoraConfig(
            self.lora_rank, self.lora_alpha, self.lora_targets, self.lora_dropout or 0.0, self.lora_rslora
        )

    def full(self) -> RunSettings:
        """These settings without adapters, for a model into which they are merged."""
        adapters = [f for f in fields(self) if f.name.startswith("lora_") or f.name == "adapter"]
        return replace(self, **{f.name: f.default for f in adapters})


def not_placed() -> dict[str, Any]:
    """The settings of a run of which Ray places nothing: those that are for Ray, as they are by default."""
    of_ray = ("cluster", "cluster_address", "cluster_file", "rollout_workers", "gpus_per_worker", "learner_gpus")
    known = RunSettings.__dataclass_fields__
    return {name: known[name].default for name in (*of_ray, "reward_workers", "colocate")}


@settings
class WarmStartConfig:
    """The supervised warm start of a fresh model."""

    steps: int = setting(300, "supervised steps on the task's demonstrations before RL; 0: none", least=0)
    batch: int = setting(64, "demonstrations in a batch of the warm start", least=1)
    lr: float = setting(3e-3, "learning rate of the warm start", above=0)
    seed: int = setting(0, "random seed of the fresh weights and the warm start")
    practice_steps: int = setting(
        0, "supervised steps before these, on what the task has for practice; one practice serves many tasks", least=0
    )


@settings
class EvalConfig:
    """Evaluation of a policy: greedy and sampled accuracy, and pass@k."""

    tasks: int = setting(200, "held-out tasks to evaluate on; 0: none", least=0)
    pass_at_k_tasks: int = setting(48, "how many of these tasks are sampled k times for pass@k", least=0)
    k: int = setting(64, "samples of each of them for pass@k; 0: none", least=0)
    decoder_samples: int = setting(
        4, "samples of each task for the sampled accuracy, with the own program and each decoder; 0: none", least=0
    )
    seed: int | None = setting(
        None,
        "draw the tasks from all held-out ones by this seed, also those of evaluations during training (default:"
        " the first)",
    )


# Field of RunConfig -> (prefix of its settings' names, their dataclass).
SETTING_GROUPS: Mapping[str, tuple[str, type]] = {
    "settings": ("", RunSettings),
    "warm": ("warm_", WarmStartConfig),
    "final_eval": ("final_eval_", EvalConfig),
}
SETTING_NAMES = {prefix + f.name: group for group, (prefix, cls) in SETTING_GROUPS.items() for f in fields(cls)}


def group_settings(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by their flat names, as arguments of each dataclass. Raises UnknownName.

    >>> group_settings({"lr": 1e-4, "warm_steps": 9})
    {'settings': {'lr': 0.0001}, 'warm': {'steps': 9}, 'final_eval': {}}
    """
    out: dict[str, dict[str, Any]] = {group: {} for group in SETTING_GROUPS}
    if file := values.get("cluster_file"):
        values = {**read_settings(file), **values}
    for name, value in values.items():
        if name not in SETTING_NAMES:
            raise unknown("setting", name, SETTING_NAMES)
        group = SETTING_NAMES[name]
        out[group][name.removeprefix(SETTING_GROUPS[group][0])] = value
    return out


def split_settings(
    entry: MethodEntry[...] | None, named: Mapping[str, Any], args: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(hyper-parameters, settings): `args` and `settings`, each with its share of `named`.

    Raises BadValue for a name in `named` that both have and for one given twice, UnknownName for one that neither has.
    """
    own, method = (entry.hyper_parameters, entry.name) if entry else ({}, "")
    out = {**args}, {**settings}
    for name, value in named.items():
        if name in own and name in SETTING_NAMES:
            raise BadValue(
                f"{name}: both a hyper-parameter of {method} and a setting of the run; give args={{{name!r}: ...}} or"
                f" settings={{{name!r}: ...}}, on the command line {method}:{name}=... (train:"
                f" {option_name(name, 'method')}) or {option_name(name, 'run')}"
            )
        if name not in own and name not in SETTING_NAMES:
            raise unknown(
                f"setting or hyper-parameter of {method}" if entry else "setting", name, [*SETTING_NAMES, *own]
            )
        if name in out[name in SETTING_NAMES]:
            raise BadValue(f"{name}: given twice; leave one out")
        out[name in SETTING_NAMES][name] = value
    return out


def option_name(name: str, of: str = "") -> str:
    """A name as an option of the command line; `of`: "method" or "run", which makes it unambiguous.

    >>> option_name("grad_clip"), option_name("grad_clip", "run")
    ('--grad-clip', '--run.grad-clip')
    """
    return f"--{of}.{name.replace('_', '-')}" if of else f"--{name.replace('_', '-')}"
