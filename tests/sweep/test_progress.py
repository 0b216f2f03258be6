from attnbench.sweep.progress import Lines


def test_a_line_per_finished_group_and_one_for_all_that_were_skipped() -> None:
    written: list[str] = []
    lines = Lines(written.append)
    lines.start(100.0)
    lines.say("block self T=32 fp32: round 3, 4 workers")
    lines.advance(40.0, 61.0)
    for _ in range(3):
        lines.skip("the time budget was spent")
        lines.advance(100.0, 0.0)
    lines.stop()
    assert written == [
        " 40%  block self T=32 fp32 done, about 1:01 left",
        "3 problems skipped: the time budget was spent",
    ]


def test_a_group_after_a_skipped_one_has_its_line() -> None:
    written: list[str] = []
    lines = Lines(written.append)
    lines.start(10.0)
    lines.skip("why")
    lines.advance(1.0, 9.0)
    lines.say("b: memory")
    lines.advance(10.0, 0.0)
    lines.stop()
    lines.stop()
    assert written == ["100%  b done, about 0:00 left", "1 problem skipped: why"]


def test_a_module_keeps_the_colon_of_its_name() -> None:
    written: list[str] = []
    lines = Lines(written.append)
    lines.start(10.0)
    lines.say("blocks:Own seq=128 fp32: round 3, 4 workers")
    lines.advance(10.0, 0.0)
    lines.stop()
    assert written == ["100%  blocks:Own seq=128 fp32 done, about 0:00 left"]
