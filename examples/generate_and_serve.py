"""Ask a finished run, and serve it by OpenAI's HTTP interface (pip install 'selfteach[serve]').

    python generate_and_serve.py [RUN]

Without a run a small one is trained first. Any client of OpenAI's interface can take the place of urllib.

One run: right answers, sampled, 71 % -> 86 % (100 prompts), then "odd" from both ways; 12 s of one core.
"""

import json
import os
import random
import subprocess
import sys
import urllib.request

import selfteach
from selfteach import methods

SIZES = {"steps": 20, "warm_steps": 200, "warm_batch": 16, "lr": 3e-4, "final_eval_k": 0}
TOY = {"steps": 1, "warm_steps": 2, "final_eval_tasks": 2, "eval_every": 0} if "SELFTEACH_TOY" in os.environ else {}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        run = selfteach.load(sys.argv[1])
    else:
        draw, rows, kinds = random.Random(0), [], ["even", "odd"]
        for n in range(1000):
            said = kinds[(n + (draw.random() < 0.3)) % 2]
            rows.append({"prompt": " ".join(f"{n:03}") + " is", "answer": kinds[n % 2], "completion": said})
        run = selfteach.train(methods.grpo(), model="tiny-s", train=rows, **{**SIZES, **TOY})
    for text in run.policy.generate("0 0 7 is", n=3, max_tokens=8, seed=1):
        print(repr(text), text.status, text.logprobs[:2])
    run.policy.close()

    command = [sys.executable, "-m", "selfteach.cli", "serve", str(run.folder), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            at = json.loads(server.stdout.readline())  # {"url": ..., "model": ...}
            body = json.dumps({"model": at["model"], "prompt": "0 0 7 is", "max_tokens": 8, "temperature": 0})
            request = urllib.request.Request(f"{at['url']}/completions", body.encode())
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request) as answer:
                print([choice["text"] for choice in json.load(answer)["choices"]])
        finally:
            server.terminate()
