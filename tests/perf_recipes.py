"""How fast is every recipe, and what does `--recipe auto` pick? `make perf-recipes` prints it; nothing is asserted.

Ratios are over the plain torch.onnx.export (onnx-decomposed), paired by rounds, one thread, fp32, E = 512, 8 heads.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence

from attnbench.deploy.recipes import MOST_SLOWER, PLAIN, Timed, choose_recipe, time_recipes
from attnbench.deploy.targets import TARGETS, Target
from attnbench.problem import Problem

CAUSAL_AT, CAUSAL_FASTER, CAUSAL_PEAK, MEAN_FASTER = 1024, 1.5, 0.25, 1.2  # the bars of ONNX Runtime's CPU


def tell(text: str) -> None:
    """A line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def rows(found: Sequence[Timed], taken: str, seq_lens: Sequence[int]) -> None:
    """A line per recipe and T."""
    plain = found[0]
    for timed in found:
        name = f"{timed.name}{' *' if timed.name == taken else ''}"
        if timed.status != "ok":
            tell(f"    {name:18} {timed.status}: {timed.reason}")
            continue
        cells = []
        for seq_len in seq_lens:
            ratio, peak, base = timed.ratios[seq_len], timed.peaks.get(seq_len), plain.peaks.get(seq_len)
            memory = f"{peak / base:.2f}" if peak and base else "-"
            cells.append(f"{ratio.ratio:.2f} ({ratio.low:.2f}-{ratio.high:.2f}) {memory}")
        tell(f"    {name:18} " + " | ".join(f"{cell:21}" for cell in cells) + f"  mean {timed.ratio():.2f}")


def bars(timed: Timed, plain: Timed, variant: str, target: Target) -> None:
    """Which bars the recipe that was picked meets."""
    slow = timed.slower_at
    tell(f"    never {MOST_SLOWER:.0%} slower: {f'MISSED at T = {slow}' if slow else 'met'}")
    if (variant, target.name) == ("causal", "onnxruntime-cpu"):
        for seq_len in (t for t in timed.ratios if t >= CAUSAL_AT):
            ratio, peak, base = timed.ratios[seq_len].ratio, timed.peaks.get(seq_len), plain.peaks.get(seq_len)
            share = peak / base if peak and base else math.nan
            is_met = ratio >= CAUSAL_FASTER and share <= CAUSAL_PEAK
            tell(f"    T = {seq_len}: {ratio:.2f}x with {share:.2f} of the peak: {'met' if is_met else 'MISSED'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", default="onnxruntime-cpu,openvino")
    parser.add_argument("--variants", default="self,cross,causal")
    parser.add_argument("--seq-lens", default="128,256,512,1024,2048,4096")
    parser.add_argument("--timing-s", type=float, default=8.0, help="of each T, beyond the fewest rounds")
    options = parser.parse_args()
    lens = [int(text) for text in options.seq_lens.split(",")]
    tell(f"T = {lens}; each: ratio (98 % interval) and share of the plain peak; * what auto picks")
    for target in (TARGETS[name] for name in options.targets.split(",")):
        assert target.runtime is not None
        means = []
        for variant in options.variants.split(","):
            problem = Problem.make(variant=variant, seq_len=64)
            taken = choose_recipe(problem, target)[0].exporter
            names = [PLAIN, *(name for name in target.recipes if name != PLAIN)]
            timed, noise = time_recipes(
                problem, names, target.runtime, seq_lens=lens, timing_s=options.timing_s, memory_at=lens
            )
            load = os.getloadavg()[0]
            tell(f"{target.name} {variant} (noise floor {noise:.1%}, load {load:.1f})")
            rows(timed, taken, lens)
            picked = next(t for t in timed if t.name == taken)
            if picked.status == "ok":
                bars(picked, timed[0], variant, target)
                means.append(picked.ratio())
        if means:
            mean = math.prod(means) ** (1 / len(means))
            bar = f" (bar: {MEAN_FASTER}x)" if target.name == "onnxruntime-cpu" else ""
            tell(f"{target.name}: {mean:.3f}x in geometric mean over {options.variants} and every T{bar}")
