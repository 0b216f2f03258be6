"""--recipe auto: what is right is timed, the fastest is taken, noise decides nothing."""

import inspect

import pytest

from attnbench import bundles
from attnbench.deploy import recipes, write
from attnbench.deploy.attention import AttentionSource
from attnbench.deploy.recipes import PLAIN, Timed, choose_recipe, rank, sized, table
from attnbench.deploy.targets import find_target
from attnbench.measure.statistics import Ratio
from attnbench.problem import Problem


def make_ratio(mid: float, width: float = 0.01) -> Ratio:
    return Ratio(ratio=mid, low=mid * (1 - width), high=mid * (1 + width), exact=True, count=20, n_eff=20.0)


def timed(name: str, *mids: float, peak_mib: int | None = 100) -> Timed:
    ratios = {128 * 4**i: make_ratio(mid) for i, mid in enumerate(mids)}
    return Timed(name=name, opset=None, ratios=ratios, peaks={128: None if peak_mib is None else peak_mib << 20})


def test_the_fastest_in_geometric_mean_is_taken() -> None:
    found = [timed(PLAIN, 1.0, 1.0), timed("onnx-contrib", 1.1, 1.2), timed("onnx-blocked", 1.0, 1.6)]
    assert [t.name for t in rank(found, 0.01)] == ["onnx-blocked", "onnx-contrib", PLAIN]
    assert found[2].ratio() == pytest.approx(1.6**0.5)


def test_within_the_noise_the_smaller_peak_is_taken_then_the_simpler_recipe() -> None:
    found = [timed(PLAIN, 1.0), timed("onnx-contrib", 1.02, peak_mib=50), timed("onnx-blocked", 1.01, peak_mib=9)]
    assert rank(found, 0.015)[0].name == "onnx-blocked"
    assert rank(found, 0.005)[0].name == "onnx-contrib"
    same = [timed(PLAIN, 1.0), timed("onnx-contrib", 1.0), timed("onnx-attention", 1.0)]
    assert rank(same, 0.01)[0].name == "onnx-attention"
    unknown = [timed("onnx-attention", 1.0, peak_mib=None), timed("onnx-blocked", 1.0, peak_mib=900)]
    assert rank(unknown, 0.01)[0].name == "onnx-blocked"


def test_what_is_shown_to_be_slower_than_plain_at_one_length_is_not_taken() -> None:
    found = [timed(PLAIN, 1.0, 1.0), timed("onnx-blocked", 0.95, 1.6), timed("onnx-contrib", 0.98, 1.1)]
    assert found[1].slower_at == [128]
    assert found[2].slower_at == []  # its interval reaches 1/1.03
    assert [t.name for t in rank(found, 0.01)] == ["onnx-contrib", PLAIN, "onnx-blocked"]


def test_what_may_be_slower_for_all_that_was_measured_is_not_taken_before_plain() -> None:
    wide = Timed(name="onnx-contrib", opset=None, ratios={128: make_ratio(1.12, width=0.7)}, peaks={128: 1})
    assert [t.name for t in rank([timed(PLAIN, 1.0), wide], 0.03)] == [PLAIN, "onnx-contrib"]
    narrow = timed("onnx-contrib", 0.99, peak_mib=1)
    assert rank([timed(PLAIN, 1.0), narrow], 0.03)[0].name == "onnx-contrib"
    # At each of three T it may be 6 % slower; that it is so at all of them is not likely.
    three = Timed(name="onnx-contrib", opset=None, ratios={t: make_ratio(1.02, width=0.08) for t in (1, 2, 3)})
    assert not three.is_doubtful
    assert Timed(name="onnx-contrib", opset=None, ratios={1: make_ratio(1.02, width=0.08)}).is_doubtful


@pytest.mark.parametrize("name", ["onnxruntime-cuda", "tensorrt", "tensorrt-rtx"])
def test_without_the_target_here_the_documented_best_comes_first_and_says_why(name: str) -> None:
    target = find_target(name)
    found = choose_recipe(Problem.make(seq_len=8), target)
    assert [recipe.exporter for recipe in found] == list(target.recipes)
    assert {recipe.chosen_by for recipe in found} == {"documented"}
    assert found[0].reason == f"{target.documented}; it was not timed: nothing here runs {name}"


@pytest.mark.parametrize("name", ["onnxruntime-cpu", "openvino", "tensorrt"])
def test_without_a_word_the_documented_best_is_taken_and_nothing_is_timed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        pytest.fail("it was timed")

    monkeypatch.setattr(recipes, "choose_recipe", refuse)
    asked = inspect.signature(write.write_bundle).parameters["recipe"].default
    assert inspect.signature(bundles.export_bundle).parameters["recipe"].default == asked
    assert inspect.signature(bundles.export_module).parameters["recipe"].default == asked
    source, target = AttentionSource(problem=Problem.make(variant="causal", seq_len=8), seed=0), find_target(name)
    found = write.recipes_to_try(source, target, asked, print)
    assert [recipe.exporter for recipe in found] == list(target.recipes)
    why = "--recipe auto times what is right" if target.runtime else f"nothing here runs {name}"
    assert found[0].reason == f"{target.documented}; it was not timed: {why}"


@pytest.mark.parametrize(
    ("variant", "mask", "first"),
    [("self", "", "onnx-contrib"), ("cross", "", "onnx-contrib"), ("decode", "", "onnx-contrib"),
     ("causal", "", "onnx-blocked"), ("self", "key_padding", "onnx-blocked")],
)  # fmt: skip
def test_on_onnxruntime_a_fused_operator_comes_first_where_it_has_a_kernel(variant: str, mask: str, first: str) -> None:
    problem = Problem.make(variant=variant, seq_len=8, mask=mask)  # type: ignore[arg-type]
    target = find_target("onnxruntime-cpu")
    found = recipes.documented(target, problem, "it was not asked")
    assert found[0].exporter == first
    assert sorted(recipe.exporter for recipe in found) == sorted(target.recipes)
    assert ("flash kernel" in found[0].reason) == (first == "onnx-contrib")


def test_sizes_follow_the_variant() -> None:
    cross = sized(Problem.make(variant="cross", seq_len=8), 128)
    assert (cross.q_len, cross.kv_len) == (128, 64)
    decode = sized(Problem.make(variant="decode", seq_len=8, q_len=3), 128)
    assert (decode.q_len, decode.kv_len) == (1, 128)


@pytest.mark.parametrize(
    ("max_len", "lengths"), [(17, [17]), (128, [128]), (512, [128, 256, 512]), (8192, [128, 256, 1024])]
)
def test_recipes_are_timed_at_no_length_that_the_bundle_is_not_made_for(
    max_len: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(recipes, "choose_recipe", lambda *_, seq_lens, **__: asked.append(seq_lens))
    source = AttentionSource(problem=Problem.make(seq_len=8), seed=0, max_len=max_len)
    write.recipes_to_try(source, find_target("openvino"), "auto", print)
    assert asked == [lengths]


@pytest.mark.slow
def test_every_recipe_is_judged_and_timed_or_says_why_not() -> None:
    """Grouped heads with values of another size: com.microsoft's operator refuses them."""
    problem = Problem.make(variant="causal", seq_len=8, num_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=8)
    lines: list[str] = []
    found = choose_recipe(problem, find_target("onnxruntime-cpu"), seq_lens=(16,), timing_s=0.01, say=lines.append)
    assert {recipe.exporter for recipe in found} == {PLAIN, "onnx-attention", "onnx-blocked"}
    assert {recipe.chosen_by for recipe in found} == {"measured"}
    candidates = {candidate["name"]: candidate for candidate in found[0].candidates}
    assert candidates["onnx-contrib"]["status"] == "unsupported"
    assert "v_head_dim 8" in candidates["onnx-contrib"]["reason"]
    assert candidates[PLAIN]["ratio"] == 1.0
    best = candidates[found[0].exporter]
    assert best["ratio_low"] <= best["ratio"] <= best["ratio_high"]
    assert best["peak_host_bytes"] > 0
    assert len(lines) == 6
    assert "T=16" in lines[0]


def test_the_table_says_why_a_recipe_has_no_figures() -> None:
    wrong = Timed(name="onnx-contrib", opset=None, status="mismatch", reason="does not conform: probe no_key_row")
    lines = table([timed(PLAIN, 1.0), wrong], 0.012, {128: "T=128"})
    assert lines[1].split() == [PLAIN, "1.00x", "1.00x", "0.99", "to", "1.01", "100.0", "MiB"]
    assert lines[2].split(maxsplit=1) == ["onnx-contrib", "mismatch: does not conform: probe no_key_row"]
    assert lines[3].endswith("noise floor 1.2%")
