"""The README of a bundle says what bundle.json says."""

from attnbench.deploy.manifest import Recipe, read_manifest
from attnbench.deploy.readme import readme


def test_what_was_timed_is_a_table_and_what_failed_has_its_reason(ort_bundle):
    timed = {"name": "a", "status": "ok", "reason": "", "ratio": 1.234, "ratio_low": 1.1, "ratio_high": 1.4,
             "peak_host_bytes": 3 << 20}  # fmt: skip
    failed = {"name": "b", "status": "unsupported", "reason": "no kernel"}
    recipe = Recipe(exporter="a", opset=23, chosen_by="measured", reason="the fastest", candidates=(timed, failed))
    bundle = read_manifest(ort_bundle).model_copy(update={"recipe": recipe})
    text = readme(bundle, "It attends.", ["Mind the gap."])
    assert "| a | 1.23x | 1.10 to 1.40 | 3.0 MiB |" in text
    assert "| b | unsupported: no kernel | | |" in text
    assert "By a, opset 23: the fastest." in text
    assert "\nMind the gap.\n" in text


def test_masks_sizes_and_every_error_are_told(ort_bundle, torch_bundle):
    text = (ort_bundle / "README.md").read_text(encoding="utf-8")
    assert "Causal, aligned top-left: query i sees keys 0 to i." in text
    assert "`batch_size` 1 to 2, `seq_len` 1 to 48" in text
    for case in read_manifest(ort_bundle).golden:
        assert f"| {case.file} | `y` | {case.errors['y']:.2g} | {case.limits['y']:.2g} | {case.reason} |" in text
    decode = (torch_bundle / "README.md").read_text(encoding="utf-8")
    assert "aligned bottom-right: the last query sees every key" in decode
    assert "`past_len` 0 to 47" in decode
    assert "| `present_key` | bf16 | batch_size x 4 x kv_len x 8 |" in decode


def test_a_boolean_mask_says_what_true_means():
    from attnbench.deploy.attention import mask_means
    from attnbench.problem import Problem

    padded = Problem.make(variant="causal", seq_len=8, mask="causal_top_left+key_padding")
    assert mask_means(padded).startswith("True: the query may attend to the key; False: it may not, beside")
    assert mask_means(Problem.make(seq_len=8, mask="alibi")) == "added to the scaled scores before the softmax"
