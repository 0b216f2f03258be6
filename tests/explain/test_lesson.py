"""The lesson: right numbers, all of them computed, each topic a screen."""

import math
import re

import numpy as np
import pytest

from attnbench.cli import main
from attnbench.errors import InputError
from attnbench.explain import numbers, pictures, topics
from attnbench.explain.shapes import make_subject
from attnbench.problem import Problem


@pytest.fixture(scope="module")
def screens():
    return {name: topics.screen(name, make_subject(None)) for name in topics.TOPICS}


@pytest.mark.parametrize("name", topics.TOPICS)
def test_a_topic_is_one_screen(screens, name):
    lines = screens[name].split("\n")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert screens[name].isascii()


def test_the_table_of_contents_is_one_screen():
    assert max(map(len, topics.contents().split("\n"))) <= 80


# ---- the worked example


def test_the_worked_example_is_what_a_pencil_gives():
    """Token 2: q = (0, 1) fits the keys (1, 1), (0, 1), (1, 2) by 1, 1, 2."""
    w = numbers.worked_example()
    assert w["q k^T"][1].tolist() == [1.0, 1.0, 2.0]
    a, b = math.exp(1 / math.sqrt(2)), math.exp(2 / math.sqrt(2))
    share = b / (2 * a + b)
    assert w["softmax"][1, 2] == pytest.approx(share)
    rest = (1 - share) / 2
    mixed = (rest * 1 + rest * 1 + share * 2, rest * 0 + rest * 2 + share * 2)  # of v = (1, 0), (1, 2), (2, 2)
    assert w["softmax v"][1] == pytest.approx(mixed)
    assert w["y = softmax v W_O"][1] == pytest.approx((mixed[0], mixed[0] + mixed[1]))  # by W_O = ((1, 1), (0, 1))


def test_the_oracle_and_the_block_give_the_worked_example():
    y = numbers.worked_example()["y = softmax v W_O"]
    assert max(numbers.gaps(numbers.TOKENS, y)) < 1e-14
    assert numbers.gaps(numbers.TOKENS, y + 0.5) == pytest.approx((0.5, 0.5))


def test_other_tokens_give_another_text(monkeypatch, screens):
    monkeypatch.setattr(numbers, "TOKENS", np.array([[3.0, 1.0], [1.0, 0.0]]))
    text = topics.screen("example", make_subject(None))
    assert "2 tokens of 2 numbers" in text
    assert "6.000  1.000" in text  # q of the first: (2 x 3, 1 x 1)
    assert "6.000" not in screens["example"]


# ---- the scale


def test_the_spread_of_products_is_the_root_of_their_length(screens):
    found = [numbers.looks(d_k, seed=0) for d_k in (4, 64, 512)]
    assert [bare.spread for bare, _ in found] == pytest.approx([2.0, 8.0, 22.627], rel=0.02)
    assert [scaled.spread for _, scaled in found] == pytest.approx([1.0, 1.0, 1.0], rel=0.02)
    rows = [line.split() for line in screens["scale"].split("\n") if re.match(r" +\d+ +\d", line)]
    assert [row[:2] for row in rows] == [["4", "2.0"], ["64", "8.0"], ["512", "22.6"]]


def test_without_the_scale_one_key_takes_all_and_with_it_none_does():
    bare, scaled = numbers.looks(512, seed=1)
    assert bare.largest > 0.85
    assert scaled.largest < 0.2
    assert bare.keys_used < 2
    assert 30 < scaled.keys_used < 64


def test_softmax_of_equal_scores_is_shared_by_all_keys():
    shares = numbers.softmax(np.zeros((1, 64)))
    assert np.exp(-(shares * np.log(shares)).sum()) == pytest.approx(64)


def test_another_seed_gives_another_text(screens):
    assert topics.screen("scale", make_subject(None, seed=7)) != screens["scale"]
    assert topics.screen("mask", make_subject(None, seed=7)) != screens["mask"]


# ---- masks


def test_the_weights_of_the_block_are_those_of_the_formula():
    """softmax(q k / sqrt(D)) of the block's own projections, in float64."""
    from attnbench.inputs import make_inputs, make_weights

    problem = Problem.make(variant="cross", seq_len=5, kv_len=3, num_heads=2, head_dim=8)
    inputs, weights = make_inputs(problem, seed=4), make_weights(problem, seed=4)
    found = numbers.block_weights(problem, 4)
    for head in range(2):
        columns = slice(8 * head, 8 * head + 8)
        pairs = (("query", "w_q"), ("context", "w_k"))
        q, k = (inputs[name][0].astype(np.float64) @ weights[w][:, columns] for name, w in pairs)
        np.testing.assert_allclose(found[head], numbers.softmax(q @ k.T / math.sqrt(8)), atol=1e-6)


def test_the_causal_pattern_is_a_triangle_and_the_cross_pattern_is_not_square(screens):
    causal, cross = (numbers.block_weights(p, 0) for p in topics.pattern_problems())
    assert (np.triu(causal, 1) == 0.0).all()
    assert (np.tril(causal[0]) > 0.0).sum() == 12 * 13 / 2
    assert cross.shape == (4, 12, 7)
    assert "Largest weight above the diagonal: 0." in screens["mask"]


# ---- counts


def test_the_parameters_of_gpt3_are_those_of_the_paper(screens):
    text = screens["parameters"]
    for number in ("12,288 x 128", "1,572,864", "6,291,456  6.3 M", "603,979,776  604 M", "57,982,058,496  58 B"):
        assert number in text


def test_the_parameters_of_grouped_heads_are_fewer():
    """4 heads of 8 with 2 for keys: 32 x 32 twice, 32 x 16 twice."""
    text = topics.screen("parameters", make_subject(None, num_heads=4, head_dim=8, num_kv_heads=2))
    assert "3,072  3.1 k" in text
    assert "2 heads share each W_K and W_V" in text


def test_value_down_and_value_up_are_the_value_map(screens):
    gap, size, rank = numbers.factored_value(4, 16, seed=0)
    assert gap < 1e-14
    assert size > 0.1
    assert rank == 16
    assert "3,145,728   48.0 times fewer" in screens["low-rank"]  # 2 x 12288 x 128 of 12288 x 12288


def test_a_hundred_thousand_tokens_have_ten_to_the_ten_scores(screens):
    rows = {line.split()[0]: line for line in screens["grid"].split("\n") if re.match(r" +\d", line)}
    assert "10^10" in rows["100,000"]
    assert "3.49 TiB" in rows["100,000"]  # 96 x 10^10 x 4 bytes
    assert "4.65 GiB" in rows["100,000"]  # 96 x 10^5 x 130 x 4 bytes
    other = topics.screen("grid", make_subject("vit-b16", lengths=(200,)))
    assert "40,000" in other
    assert "1.83 MiB" in other  # 12 x 40,000 x 4 bytes


def test_the_presets_are_shown_with_their_sources(screens):
    for name in ("gpt3", "llama3-8b", "whisper-base", "vit-b16", "t5-base"):
        assert f"\n{name} " in screens["presets"]
    assert screens["presets"].count("arXiv:") == 5


@pytest.mark.parametrize(("count", "text"), [(999, "999"), (1_000, "1.0 k"), (6_291_456, "6.3 M"), (57.98e9, "58 B")])
def test_counts_are_shortened(count, text):
    assert topics.short_count(count) == text


# ---- the command


def test_without_words_it_is_the_whole_lesson(capsys):
    assert main(["explain"]) == 0
    text = capsys.readouterr().out
    assert all(f"attnbench explain {name}" in text for name in topics.TOPICS)
    assert all(f"\n{name}: " in text for name in topics.TOPICS)


def test_pictures_and_page_are_written_beside_what_is_there(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["explain", "mask", "-o", str(tmp_path)]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "attention-causal.png", "attention-cross.png", "lesson.html", "mine.txt",
    ]  # fmt: skip
    page = (tmp_path / "lesson.html").read_text()
    assert page.count("<img alt=") == 2
    assert page.count("<section") == 1
    assert "http" not in page.replace("https://", "")
    for name in ("causal", "cross"):
        assert (tmp_path / f"attention-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "written: " in capsys.readouterr().out


def test_the_same_seed_gives_the_same_page(screens):
    images = {"attention-causal.png": b"1"}
    subject = make_subject(None)
    assert pictures.page(subject, ["mask", "grid"], images) == pictures.page(subject, ["mask", "grid"], images)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("nope", "explain takes a topic (example, scale"),
        ("a b c", "explain takes a topic"),
        ("grid --json", "--json is for explain RUN CASE"),
        ("grid --preset nope", "no preset 'nope'"),
        ("grid -s 0", "--seq-lens must be a whole number"),
        ("parameters --heads 4 --kv-heads 3", "num_kv_heads must divide num_heads"),
        ("mask -o README.md", "a file"),
        ("run case --preset gpt3", "explain RUN CASE takes no --preset"),
    ],
)
def test_bad_input_is_one_sentence(argv, words, capsys):
    assert main(["explain", *argv.split()]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_shape_keeps_the_preset_but_for_what_is_given():
    assert make_subject("llama3-8b", num_heads=16).problem.num_kv_heads == 16
    assert make_subject("llama3-8b").problem.num_kv_heads == 8
    assert make_subject(None, num_heads=4).layers == 1
    with pytest.raises(InputError):
        make_subject("nope")
