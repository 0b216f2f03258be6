from attnbench.fusion.lint_verdicts import verdict

SCORES = (100, 400)  # bytes of one matrix at T and 2T


def test_memory_that_grows_in_proportion_is_fused_however_much_it_is() -> None:
    assert verdict((1000, 2000), SCORES, (10, 20)) == "fused"


def test_memory_that_holds_one_matrix_of_scores_is_not_fused() -> None:
    assert verdict((1000 + 100, 2000 + 400), SCORES, (10, 20)) == "unfused"


def test_a_mask_that_eight_heads_share_is_no_matrix_of_scores() -> None:
    assert verdict((1000 + 100 // 8, 2000 + 400 // 8), SCORES, (10, 20)) == "fused"


def test_one_refusal_is_refused() -> None:
    assert verdict((1000, None), SCORES, (10, 20)) == "refused"


def test_at_one_size_memory_is_compared_with_one_matrix_of_scores() -> None:
    assert verdict((90,), (100,), (10,)) == "unfused"
    assert verdict((20,), (100,), (10,)) == "fused"


def test_scores_as_small_as_the_inputs_do_not_tell() -> None:
    assert verdict((90,), (100,), (50,)) == "unknown"
    assert verdict((90, 180), (100, 200), (50, 100)) == "unknown"
    assert verdict((90, 180), (None, None), (1, 1)) == "unknown"


def test_an_empty_batch_has_no_scores_that_could_tell() -> None:
    assert verdict((90, 180), (0, 0), (0, 0)) == "unknown"
