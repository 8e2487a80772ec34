"""TRL's GRPOTrainer with transformers' generate, a step at a time: it trains in a thread that waits between steps."""

from __future__ import annotations

import tempfile
import threading
import time
import zlib
from importlib import import_module
from typing import Any

NEEDS = ("trl", "transformers", "datasets")


def prepare(workload: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """See `peers`; the variants are listed in `systems.PEERS`."""
    torch, trl, hf, datasets = (import_module(n) for n in ("torch", "trl", "transformers", "datasets"))
    torch.set_num_threads(workload["threads"])
    bf16 = workload["variant"] == "bf16"
    model = hf.AutoModelForCausalLM.from_pretrained(workload["folder"], dtype=torch.float32)
    tokenizer = hf.AutoTokenizer.from_pretrained(workload["folder"])
    tokenizer.pad_token = tokenizer.eos_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    spent: dict[str, float] = {}
    batch_size = workload["prompts"] * workload["rollouts"]
    args = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=bf16,
        per_device_train_batch_size=batch_size,
        num_generations=workload["rollouts"],
        max_completion_length=workload["new"],
        generation_kwargs={"min_new_tokens": workload["new"]},
        temperature=1.0,
        top_k=0,
        beta=0.0,
        loss_type="dapo",
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        max_steps=10_000,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=workload["variant"] == "checkpointing",
        disable_tqdm=True,
    )
    gate = Gate(hf.TrainerCallback)
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [zlib.crc32(str(c).encode()) / 2**32 for c in completions],
        args=args,
        train_dataset=datasets.Dataset.from_dict({"prompt": workload["texts"]}),
        processing_class=tokenizer,
        callbacks=[gate.callback],
    )
    sampled: list[int] = []
    watch(trainer, "_generate_single_turn", "generation", spent, lambda out: sampled.extend(map(len, out[0])))
    watch(trainer, "_get_per_token_logps_and_entropies", "log-probabilities", spent)
    watch(trainer.accelerator, "backward", "backward", spent)
    gate.start(lambda: (torch.set_num_threads(workload["threads"]), trainer.train()))

    def run(_: dict[str, Any]) -> dict[str, Any]:
        spent.clear()
        sampled.clear()
        seconds = gate.step()
        return {"seconds": seconds, "tokens": sum(sampled), **{f"seconds/{k}": v for k, v in spent.items()}}

    return {
        "version": trl.__version__,
        "transformers": hf.__version__,
        "dtype": "bfloat16" if bf16 else "float32",
    }, run


def watch(owner: Any, name: str, phase: str, spent: dict[str, float], on_output: Any = lambda out: None) -> None:
    """Add the seconds of every call of a method to `spent[phase]`."""
    inner = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        out = inner(*args, **kwargs)
        spent[phase] = spent.get(phase, 0.0) + time.perf_counter() - start
        on_output(out)
        return out

    setattr(owner, name, timed)


class Gate:
    """Lets a trainer in another thread do one step at a time."""

    def __init__(self, base: type) -> None:
        self.go, self.done, self.error = threading.Semaphore(0), threading.Semaphore(0), None
        gate = self

        def begin(self: Any, *_: Any, **__: Any) -> None:
            gate.go.acquire()
            gate.started = time.perf_counter()

        def end(self: Any, *_: Any, **__: Any) -> None:
            gate.took = time.perf_counter() - gate.started
            gate.done.release()

        self.callback = type("Gated", (base,), {"on_step_begin": begin, "on_step_end": end})()
        self.started = self.took = 0.0

    def start(self, train: Any) -> None:
        """Run `train` in a thread of its own, up to the first step."""

        def run_training() -> None:
            try:
                train()
            except BaseException as error:
                self.error = error
                self.done.release()

        threading.Thread(target=run_training, daemon=True).start()

    def step(self) -> float:
        """Seconds of the next step. Raises what the trainer raised."""
        self.go.release()
        self.done.acquire()
        if self.error is not None:
            raise self.error
        return self.took
