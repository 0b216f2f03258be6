from attnbench.report.text import short_arm


def test_the_short_name_of_an_arm_keeps_what_tells_two_interpreters_apart() -> None:
    assert short_arm("onnx-attention@ort-cpu") == "attention@ort-cpu"
    assert short_arm("onnx-attention@ort-cpu[ort131=1.31.1]") == "attention..[ort131=1.31.1]"
    assert short_arm("onnx-decomposed@ort-cpu[ort131=1.31.1]") == "decompose..[ort131=1.31.1]"
    assert short_arm("torch-sdpa[backend=efficient_attention]") == "torch-sdpa[backend=effic.."
    assert all(len(short_arm(f"onnx-attention@ort-cpu[{'e' * n}=1.0]")) <= 26 for n in range(40))
