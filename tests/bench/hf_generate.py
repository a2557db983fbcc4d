"""Benchmark: tokens per second of Hugging Face ``generate``, fp32, greedy, end token ignored.

A process of its own, so that its threads and its memory are gone before a server starts. Reads
prompts as JSON lists of token ids on standard input; prints one number per batch size.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    """Measure each batch size once, after a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    prompts = torch.tensor(json.load(sys.stdin))
    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.eval()
    model.generation_config.eos_token_id = None

    def generate(batch: torch.Tensor, length: int) -> None:
        made = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=length,
            do_sample=False,
        )
        if made.shape[1] != batch.shape[1] + length:
            raise RuntimeError(f"{made.shape[1] - batch.shape[1]} tokens instead of {length}")

    speeds = {}
    for size in map(int, args.batches.split(",")):
        generate(prompts[:size], 8)
        begin = time.perf_counter()
        for repeat in range(args.repeats):
            first = (repeat * size) % max(1, len(prompts) - size + 1)
            generate(prompts[first : first + size], args.output_tokens)
        seconds = time.perf_counter() - begin
        speeds[size] = args.repeats * size * args.output_tokens / seconds
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
