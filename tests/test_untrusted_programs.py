"""OpenVINO's IR and programs of torch.export from elsewhere: what could run code or reach outside is refused."""

import json
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from attnbench.deploy.models import write_pt2
from attnbench.errors import UntrustedModelError
from attnbench.problem import Problem
from attnbench.untrusted import inspect_ir, inspect_pt2

# ---- OpenVINO


def write_ir(folder: Path, *data: str, head: str = '<?xml version="1.0"?>', size: int | None = 32) -> Path:
    """A model with these constants, and a .bin of so many bytes."""
    layers = [
        f'<layer id="{i}" name="c{i}" type="Const" version="opset1"><data {d}/></layer>' for i, d in enumerate(data)
    ]
    text = f'{head}<net name="m" version="11"><layers>{"".join(layers)}<layer id="99" type="Result"/></layers></net>'
    (folder / "model.xml").write_text(text, encoding="utf-8")
    if size is not None:
        (folder / "model.bin").write_bytes(bytes(size))
    return folder / "model.xml"


def const(kind: str = "f32", shape: str = "2, 2", offset: Any = 0, size: Any = 16) -> str:
    return f'element_type="{kind}" shape="{shape}" offset="{offset}" size="{size}"'


def test_a_sound_ir_passes_and_shared_constants_count_once(tmp_path: Path) -> None:
    data = (const(), const(offset=16), const(), const("i64", "2", 0, 16), const("f32", "", 32, 4))
    facts = inspect_ir(write_ir(tmp_path, *data, size=36))
    assert facts.operators == {"Const": 5, "Result": 1}
    assert (facts.constant_bytes, facts.data_bytes) == (36, 36)


BAD_CONSTANTS = {
    "beyond the .bin": (const(offset=17), "ends at byte 33"),
    "beyond all": (const(offset=10**13), "ends at byte"),
    "negative": (const(offset=-1), "whole number"),
    "size and shape disagree": (const(size=12), "has 12 bytes"),
    "a shape of words": (const(shape="2,x"), "has shape"),
    "a shape beyond all": (const(shape="4294967296,4294967296"), "elements are taken"),
    "an unknown type": (const(kind="object"), "of type 'object'"),
}


@pytest.mark.parametrize(("data", "rule"), BAD_CONSTANTS.values(), ids=BAD_CONSTANTS)
def test_a_constant_that_is_not_there_is_refused(tmp_path: Path, data: str, rule: str) -> None:
    with pytest.raises(UntrustedModelError, match=re.escape(rule)):
        inspect_ir(write_ir(tmp_path, data))


def test_constants_that_overlap_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UntrustedModelError, match="overlap at byte 8"):
        inspect_ir(write_ir(tmp_path, const(), const(offset=8)))


@pytest.mark.parametrize(
    "head",
    [
        '<!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>',
        '<!DOCTYPE net [<!ENTITY f SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE net SYSTEM "http://localhost/x.dtd">',
    ],
)
def test_xml_that_defines_entities_is_refused(tmp_path: Path, head: str) -> None:
    with pytest.raises(UntrustedModelError, match="DOCTYPE"):
        inspect_ir(write_ir(tmp_path, const(), head=head))


def test_xml_that_is_none_or_too_deep_is_refused(tmp_path: Path) -> None:
    path = write_ir(tmp_path, const())
    path.write_text("<net>" * 200)
    with pytest.raises(UntrustedModelError, match="deep"):
        inspect_ir(path)
    for text in ("", "not xml", '<?xml version="1.0" encoding="rot13"?><net/>', "<net><layers/></net>"):
        path.write_text(text)
        with pytest.raises(UntrustedModelError, match=r"no XML|no model"):
            inspect_ir(path)


def test_a_bin_that_is_a_link_or_missing_is_refused(tmp_path: Path) -> None:
    path = write_ir(tmp_path, const(), size=None)
    with pytest.raises(UntrustedModelError, match="has 0"):
        inspect_ir(path)
    (tmp_path / "secret").write_bytes(bytes(32))
    (tmp_path / "model.bin").symlink_to("secret")
    with pytest.raises(UntrustedModelError, match="a link"):
        inspect_ir(path)
    (tmp_path / "model.bin").unlink()
    os.link(tmp_path / "secret", tmp_path / "model.bin")
    with pytest.raises(UntrustedModelError, match="2 names"):
        inspect_ir(path)


@pytest.mark.parametrize("kind", ["Constant", "CONSTANT", "Other"])
def test_a_constant_by_another_name_is_looked_at_too(tmp_path: Path, kind: str) -> None:
    """OpenVINO takes Constant for Const, and then reads whatever offset it says."""
    path = write_ir(tmp_path, const(offset=999_999))
    path.write_text(path.read_text(encoding="utf-8").replace('"Const"', f'"{kind}"'), encoding="utf-8")
    with pytest.raises(UntrustedModelError, match="a constant ends at byte 1,000,015"):
        inspect_ir(path)


def test_text_and_elements_that_are_long_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UntrustedModelError, match="a constant is of type 'string'"):
        inspect_ir(write_ir(tmp_path, const("string", "2")))
    path = write_ir(tmp_path, const())
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('name="m"', f'name="{"m" * 300_000}"'), encoding="utf-8")
    with pytest.raises(UntrustedModelError, match="an element of over 262,144 bytes"):
        inspect_ir(path)


# ---- torch.export


def test_programs_of_ours_pass(tmp_path: Path) -> None:
    for variant in ("causal", "cross", "decode"):
        problem = Problem.make(part="block", variant=variant, seq_len=8, num_heads=2, head_dim=8)
        write_pt2(problem=problem.as_dict(), seed=0, folder=str(tmp_path))
        facts = inspect_pt2(tmp_path / "model.pt2")
        assert "torch.ops.aten.scaled_dot_product_attention.default" in facts.operators
        assert facts.weight_bytes >= 4 * 16 * 16 * 4  # four weights of E x E in fp32


def write_program(
    folder: Path, *, model: Any = None, weights: Any = None, extra: dict[str, bytes] | None = None
) -> Path:
    members = {
        "archive_format": b"pt2",
        "models/model.json": json.dumps(model or {"torch_version": "2.13.0"}).encode(),
        "data/weights/model_weights_config.json": json.dumps({"config": weights or {}}).encode(),
        "data/constants/model_constants_config.json": b'{"config": {}}',
        "data/weights/weight_0": bytes(16),
        **(extra or {}),
    }
    path = folder / "m.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name, blob in members.items():
            archive.writestr(f"m/{name}", blob)
    return path


def expression(text: str) -> dict[str, Any]:
    return {"graph": {"sym_int_values": {"s": {"as_expr": {"expr_str": text}}}}}


def test_the_smallest_program_passes(tmp_path: Path) -> None:
    weights = {"w": {"path_name": "weight_0", "use_pickle": False}}
    model = {
        "nodes": [{"target": "torch.ops.aten.add.Tensor"}],
        **expression("2*s0 + Max(1, Symbol('u1', integer=True))"),
    }
    facts = inspect_pt2(write_program(tmp_path, model=model, weights=weights))
    assert (facts.operators, facts.weight_bytes) == (("torch.ops.aten.add.Tensor",), 16)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "Symbol.__class__", "exec('1')", "(lambda: 1)()", "[x for x in ()]",
        "s0.bit", "L['x'].size()[0] == 1",
        "Symbol('__import__(1)')", "Max(*s0)", "f'{s0}'", "os", "Symbol('a')('b')", "s0 if s0 else s0", "(", "9" * 5000,
        "Integer('__import__')", "Symbol('a', **{})", "(" * 3000 + "1" + ")" * 3000,
        "Max('__import__(1)' + '', 1)", "Symbol('a' + '()')", "Symbol(name='x()')", "Symbol('s0', integer='x()')",
        "'x()' == s0", "Integer(i='x()')", "9**9**9", "Pow(9, Pow(9, 9))", "Pow(exp=99999, base=9)", "(9**64)**64",
        "Integer(9)**Integer(1000)", "2**s0", "1 << 10**12", "1e-99999999", "1.e1_0_0_0_0", "Float('1e9999')",
    ],
)  # fmt: skip
def test_an_expression_that_is_more_than_sizes_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UntrustedModelError, match="evaluate it as Python"):
        inspect_pt2(write_program(tmp_path, model=expression(text)))


@pytest.mark.parametrize(
    "target",
    [
        "torch.serialization.os.system", "torch.ops.aten.from_file.default", "torch.ops.load_library", "#ext:x", 3,
        "torch.hub.load", "_operator.methodcaller", "torch.ops.mylib.run.default",
        "torch.ops.aten.add.Tensor.__class__.x",
    ],
)  # fmt: skip
def test_an_operator_that_may_do_anything_is_refused(tmp_path: Path, target: Any) -> None:
    with pytest.raises(UntrustedModelError, match="it calls"):
        inspect_pt2(write_program(tmp_path, model={"nodes": [{"target": target}]}))


@pytest.mark.parametrize(
    "name", ["code/__torch__.py", "data.pkl", "data/aotinductor/model.so", "data/constants/custom_obj_0", "extra/x.py"]
)
def test_a_member_that_is_code_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UntrustedModelError, match="may be code"):
        inspect_pt2(write_program(tmp_path, extra={name: b"x"}))


def test_a_pickle_in_a_program_is_refused(tmp_path: Path) -> None:
    for weights in ({"w": {"path_name": "weight_0", "use_pickle": True}}, {"w": {"path_name": "weight_0"}}):
        with pytest.raises(UntrustedModelError, match="as a pickle"):
            inspect_pt2(write_program(tmp_path, weights=weights))
    with pytest.raises(UntrustedModelError, match="example inputs as a pickle"):
        inspect_pt2(write_program(tmp_path, extra={"data/sample_inputs/model.pt": b"\x80\x02."}))


SOURCE = "x=__import__('os').system('true')"


@pytest.mark.parametrize(
    "model",
    [
        {"guards_code": ["__import__('os').system('true')"]}, {"guards_code": ["L['x'].size()[0].bit_length() == 1"]},
        {"guards_code": ["math.floor(os)"]}, {"guards_code": ["torch.load('x')"]},
        {"guards_code": ["math.pi.real == 1"]},
        {"guards_code": ["L['x\"y'].size()[0] == 1"]}, {"inputs": [{"as_tensor": {"name": SOURCE}}]},
        {"tensor_values": {SOURCE: {}}}, {"forward_arg_names": [SOURCE]}, {"fqn": "a\nimport os"},
        {"in_spec": '[1, {"type": "os.system", "children_spec": []}]'},
        {"in_spec": '[1, {"type": "builtins.dict", "context": "[\\"a(1)\\"]", "children_spec": []}]'},
        {"arg": {"as_string": "'+__import__('os')+'"}},
        {"sym_int_values": {"metadata": {"as_expr": {"expr_str": SOURCE}}}}, {"x": {"metadata": {"expr_str": SOURCE}}},
        {"metadata": {"custom": {"expr_str": SOURCE}}},
    ],
)  # fmt: skip
def test_text_that_torch_writes_into_source_is_refused(tmp_path: Path, model: Any) -> None:
    with pytest.raises(UntrustedModelError, match=r"evaluate it as Python|write into source"):
        inspect_pt2(write_program(tmp_path, model=model))


def test_guards_and_texts_of_usual_programs_pass(tmp_path: Path) -> None:
    model = {
        **expression("Rational(1, 2)*Pow(Symbol('s0', positive=True, integer=True), Integer(-1)) + s1**2"),
        "more": [expression("Float('2.0', precision=53) - Float('1e-05')")],
        "guards_code": ["L['x'].size()[0] == L['y']['z'].size()[2]", "2*L['x'].size()[1] <= 64 and 1 != 2",
                        "math.floor(L['x'].size()[1] / 2) == min(16, L['x'].size()[0])"],
        "arg": {"as_string": "bhqd,bhkd->bhqk"}, "torch_version": "2.13.0+cpu",
        "in_spec": '[1, {"type": "builtins.dict", "context": "[\\"x\\"]", "children_spec": [{"type": null}]}]',
        "nodes": [{"metadata": {"nn_module_stack": "L['self'],,my.Module", "stack_trace": "File 'a.py'\n  y = f(x)"}}],
    }  # fmt: skip
    assert inspect_pt2(write_program(tmp_path, model=model)).torch_version == "2.13.0+cpu"


def test_other_lies_of_a_program_are_refused(tmp_path: Path) -> None:
    for model in ({"x": {"as_custom_obj": {}}}, {"x": {"metadata": {"nn_module_stack": "a\nb"}}}):
        with pytest.raises(UntrustedModelError, match=r"as_custom_obj|line breaks"):
            inspect_pt2(write_program(tmp_path, model=model))
    with pytest.raises(UntrustedModelError, match="not in the archive"):
        inspect_pt2(write_program(tmp_path, weights={"w": {"path_name": "../../x", "use_pickle": False}}))
    path = write_program(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UntrustedModelError, match="no archive"):
        inspect_pt2(path)


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        ("[" * 300 + "]" * 300, "nested over"), ("[" + "1," * 1_100_000 + "1]", "values"),
        (json.dumps([expression(f"s0+{i}+" + "s1+" * 500 + "1") for i in range(800)]), "characters"),
        (json.dumps({"in_spec": "[" * 300 + "]" * 300}), "nested over"),
    ],
    ids=["deep", "wide", "expressions", "tree"],
)  # fmt: skip
def test_a_program_that_is_long_work_to_look_at_is_refused(tmp_path: Path, model: str, rule: str) -> None:
    path = write_program(tmp_path, extra={"models/model.json": model.encode()})
    with pytest.raises(UntrustedModelError, match=rule):
        inspect_pt2(path)


def test_repeated_expressions_count_once(tmp_path: Path) -> None:
    repeated = {"torch_version": "2.13.0", "x": [expression("s1+" * 500 + "1")] * 1000}
    assert inspect_pt2(write_program(tmp_path, model=repeated)).torch_version == "2.13.0"


def two_lists(path: Path, *, wide: bool) -> Path:
    """The archive with a second list of members, where some readers look; `wide`: by the 64-bit records."""
    blob, count = path.read_bytes(), len(zipfile.ZipFile(path).infolist())
    end = struct.Struct("<4s4H2LH")
    size, at = end.unpack(blob[-end.size :])[5:7]
    first, body = blob[at : at + size], blob[:at]
    if not wide:
        tail = end.pack(b"PK\5\6", 0, 0, count, count, size, at, 0)
    else:
        places = (at, at + size)
        records = [struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, x) for x in places]
        where = struct.pack("<4sLQL", b"PK\6\7", 0, at + 2 * size, 1)
        tail = b"".join([*records, where, end.pack(b"PK\5\6", 0, 0, count, count, 0xFFFFFFFF, 0xFFFFFFFF, 0)])
    path.write_bytes(body + first + first + tail)
    return path


@pytest.mark.parametrize("wide", [False, True])
def test_an_archive_with_two_lists_of_members_is_refused(tmp_path: Path, wide: bool) -> None:
    with pytest.raises(UntrustedModelError, match="more at its end than one list"):
        inspect_pt2(two_lists(write_program(tmp_path), wide=wide))


def test_an_archive_with_bytes_before_or_a_comment_is_refused(tmp_path: Path) -> None:
    path = write_program(tmp_path)
    blob = path.read_bytes()
    for changed in (b"#!/bin/sh\n" + blob, blob[:-2] + b"\x02\x00ab", blob[:10], b""):
        path.write_bytes(changed)
        with pytest.raises(UntrustedModelError, match="no archive of torch"):
            inspect_pt2(path)
