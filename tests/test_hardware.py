"""The chip database: published values typed by hand, presets, names, settings, and every mistake of a user's file."""

from __future__ import annotations

import functools
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costir import chipfile, hardware
from costir.errors import ChipError
from costir.hardware import Chip, aliases, chip_names, describe, load_chip, table

DOCS = Path(__file__).parent.parent / "docs" / "chips.md"
MINE = 'name = "Mine"\n[matrix]\nbf16 = 1e14\n[memory]\nbandwidth = 1e12\n'


def write(folder: Path, text: str) -> str:
    path = folder / "my.toml"
    path.write_text(text)
    return str(path)


def refusal(spec: str, **changes: object) -> str:
    with pytest.raises(ChipError) as caught:
        load_chip(spec, {k.replace("__", "."): v for k, v in changes.items()})  # type: ignore[misc]
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Typed from the vendors' data sheets, dense: chip, quantity, whole number.
PUBLISHED = [
    ("tpu_v5e", "matrix.bf16", 197 * 10**12),
    ("tpu_v5e", "memory.bandwidth", 819 * 10**9),
    ("tpu_v5e", "memory.capacity", 16 * 2**30),
    ("tpu_v5p", "matrix.bf16", 459 * 10**12),
    ("tpu_v6e", "matrix.int8", 1836 * 10**12),
    ("v100_sxm2_32", "matrix.fp16", 125 * 10**12),
    ("a100_sxm_80", "matrix.bf16", 312 * 10**12),
    ("a100_sxm_80", "matrix.tf32", 156 * 10**12),
    ("a100_sxm_80", "vector.fp32", 19_500 * 10**9),
    ("a100_sxm_80", "memory.bandwidth", 2039 * 10**9),
    ("a100_sxm_40", "memory.bandwidth", 1555 * 10**9),
    ("h100_sxm", "matrix.bf16", 9894 * 10**11),
    ("h100_sxm", "memory.bandwidth", 3350 * 10**9),
    ("h100_sxm", "link.nvlink.two_way", 900 * 10**9),
    ("h200_sxm", "memory.bandwidth", 4800 * 10**9),
    ("b200", "matrix.fp4", 9 * 10**15),
    ("t4", "matrix.fp16", 65 * 10**12),
    ("l4", "memory.bandwidth", 300 * 10**9),
    ("rtx4090", "memory.bandwidth", 1008 * 10**9),
    ("mi300x", "matrix.bf16", 13074 * 10**11),
    ("mi300x", "memory.bandwidth", 5300 * 10**9),
    ("gaudi2", "link.roce.one_way", 24 * 100 * 10**9 // 8),
    ("trainium2", "memory.capacity", 96 * 2**30),
    ("apple_m4_max_40", "memory.bandwidth", 546 * 10**9),
]


@pytest.mark.parametrize(("chip", "quantity", "value"), PUBLISHED)
def test_published_values(chip: str, quantity: str, value: int) -> None:
    found = load_chip(chip).values[quantity]
    assert isinstance(found, Fraction)
    assert found == value


# Ridge points computed by hand from the sheets, or printed by the scaling book.
@pytest.mark.parametrize(
    ("spec", "dtype", "value", "within"),
    [
        ("h100", "bfloat16", 295, 0.5),
        ("tpu_v5e@book", "bfloat16", 240, 0.5),
        ("tpu_v5e@book", "int8", 480, 1),
        ("tpu_v5e@book_ch2", "bfloat16", 243, 0.5),
        ("tpu_v3@book", "bf16", 156, 0.5),
        ("tpu_v4p@book", "bf16", 229, 0.5),
        ("tpu_v5p@book", "bf16", 164, 0.5),
        ("tpu_v6e@book", "bf16", 575, 0.5),
        ("a100@book", "bf16", 155, 0.5),
        ("h100@book", "fp16", 295.5, 0.5),
        ("h100@book", "fp8", 597, 0.5),
        ("h100@book_2025_02", "bf16", 298, 0.6),
        ("h100@lesson", "bf16", 300, 0),
        ("h200@book", "bf16", 206, 0.5),
        ("b200@book", "bf16", 281, 0.5),
        ("apple_m4_pro@lesson", "float32", 30, 0),
        ("h100", "float32", 20, 0.1),
        ("h100", "tf32", 148, 0.5),
        ("a100_40", "bf16", 200, 1),
    ],
)
def test_ridge(spec: str, dtype: str, value: float, within: float) -> None:
    assert abs(load_chip(spec).ridge(dtype) - Fraction(value)) <= within


def test_book_preset_is_exact() -> None:
    chip = load_chip("tpu_v5e@book")
    assert (chip.matmul_rate("bfloat16"), chip.matmul_rate("int8")) == (197 * 10**12, 394 * 10**12)
    assert chip.memory_bandwidth == 82 * 10**10
    ici = chip.links["ici"]
    assert (ici.link_one_way, ici.one_way, ici.two_way) == (45 * 10**9, 4 * 45 * 10**9, 8 * 45 * 10**9)
    assert ici.link_one_way_planned is None
    assert chip.label == "tpu_v5e@book"
    assert chip.sources["memory.bandwidth"].startswith("How to Scale Your Model")
    assert chip.presets == ("book", "book_ch2", "lesson")
    assert load_chip("TPU-v5e@BOOK").values == chip.values


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_is_complete(name: str) -> None:
    chip = load_chip(name)
    assert chip.id == name
    assert chip.vendor
    assert chip.year
    assert chip.kind
    assert chip.confidence
    for quantity in chip.values:
        assert re.search(r"\[.+\]", chip.sources[quantity]), quantity
    for link in chip.links.values():
        if link.links and link.link_one_way and link.one_way:
            assert link.links * link.link_one_way == link.one_way
        if link.one_way and link.two_way:
            assert link.two_way == 2 * link.one_way
        if link.peer_one_way and link.one_way:
            assert link.peer_one_way < link.one_way
    for preset in chip.presets:
        again = load_chip(f"{name}@{preset}")
        assert again.values != {}
        assert again.preset == preset
    for key in chip.matrix:
        assert chip.matmul_rate(key) == chip.matrix[key]
        assert chip.matmul_note(key) == ""
    assert not set(chip.unsupported) & set(chip.matrix)
    assert describe(chip)


@pytest.mark.parametrize("name", chip_names())
def test_numbers_of_one_generation_agree(name: str) -> None:
    """A typing error of a digit breaks an order that holds on every chip."""
    chip = load_chip(name)
    if "bf16" in chip.matrix and "fp16" in chip.matrix and name != "gaudi3":
        assert chip.matrix["bf16"] == chip.matrix["fp16"]
    if "fp8" in chip.matrix:
        assert 1 <= chip.matrix["fp8"] / chip.matrix["bf16"] <= Fraction(203, 100)
    if chip.matrix and name != "jetson_agx_orin_64":
        wide = chip.matrix.get("bf16", chip.matrix.get("fp16"))
        assert wide is not None
        assert 70 < wide / chip.memory_bandwidth < 600


def test_database_is_whole() -> None:
    assert len(chip_names()) == 53
    files = {p.stem: tomllib.loads(p.read_text()) for p in hardware.CHIPS.glob("*.toml")}
    sources = files.pop("_sources")

    def cited(table: dict[str, object]) -> set[str]:
        out = set(table.get("source", []))  # type: ignore[call-overload]
        for key, value in table.items():
            out |= cited(value) if isinstance(value, dict) and key != "preset" else set()
        return out

    used = set().union(*(cited(f) for f in files.values()))
    assert used <= set(sources)
    assert all(set(s) == {"tier", "title", "address"} for s in sources.values())


@pytest.mark.parametrize(
    ("typed", "ident"),
    [
        ("h100", "h100_sxm"), ("H100", "h100_sxm"), ("NVIDIA H100", "h100_sxm"), ("a100", "a100_sxm_80"),
        ("v100", "v100_sxm2_32"), ("h200", "h200_sxm"), ("mi300", "mi300x"),
        ("b200", "b200"), ("4090", "rtx4090"), ("RTX 4090", "rtx4090"),
        ("GeForce RTX-4090", "rtx4090"), ("v5e", "tpu_v5e"), ("tpu-v5e", "tpu_v5e"), ("TPU v5e", "tpu_v5e"), ("m1", "apple_m1"),
        ("trn2", "trainium2"), ("orin", "jetson_agx_orin_64"), ("AMD Instinct MI300X", "mi300x"), ("m4 max", "apple_m4_max_40"),
    ],
)  # fmt: skip
def test_names(typed: str, ident: str) -> None:
    assert load_chip(typed).id == ident


def test_alias_says_what_it_stands_for() -> None:
    assert load_chip("h100").alias_note == "h100 -> h100_sxm (also: h100_nvl, h100_pcie)"
    assert load_chip("v5e").alias_note == "v5e -> tpu_v5e"
    assert load_chip("TPU v5e").alias_note == ""
    assert set(aliases().values()) <= set(chip_names())
    plain = [hardware._plain(n) for n in (*chip_names(), *aliases())]
    assert len(plain) == len(set(plain))


def test_unknown_chip_names_the_nearest() -> None:
    assert refusal("h1000").startswith("unknown chip 'h1000'; did you mean h100")
    assert "tpu_v5e" in refusal("tpu_v5x")
    assert refusal("") == "the chip has an empty name; write for example h100, tpu_v5e@book or my.toml"
    assert refusal("h100@bok") == "h100_sxm has no preset 'bok'; it has book, book_2025_02, lesson"
    assert refusal("t4@book") == "t4 has no preset 'book'; it has no presets"
    assert refusal("_sources").startswith("unknown chip")


def test_rates_by_dtype() -> None:
    h100 = load_chip("h100")
    for dtype in ("float8_e4m3fn", "float8_e5m2", "fp8", "torch.float8_e4m3fnuz"):
        assert h100.matmul_key(dtype) == "matrix.fp8"
    assert h100.matmul_key("float32") == "vector.fp32"
    assert h100.matmul_key("complex64") == "vector.fp32"
    assert h100.matmul_key("float64") == "matrix.fp64"
    assert h100.matmul_key("uint8") == "matrix.int8"
    assert h100.matmul_note("float32") == (
        "fp32 matmuls at the vector rate: the matrix unit has no fp32, torch does not use tf32 unless told to"
    )
    assert load_chip("mi300x").matmul_key("float32") == "matrix.fp32"
    tpu = load_chip("tpu_v5e")
    assert tpu.matmul_key("float32") == "matrix.bf16"
    assert "XLA" in tpu.matmul_note("float32")


@pytest.mark.parametrize(
    ("chip", "dtype", "message"),
    [
        (
            "h100",
            "int4",
            "h100_sxm has no matmul path for int4; it has fp64, tf32, bf16, fp16, fp8, int8, fp32; "
            "choose another dtype or set the rate in FLOP/s, matrix.int4=...",
        ),
        ("v100", "bfloat16", "v100_sxm2_32 has no matmul path for bfloat16; it has fp16, fp32, fp64"),
        ("h100", "int64", "h100_sxm has no known matmul rate for int64"),
        ("m2", "float32", "apple_m2 has no known matmul rate for float32: its maker publishes no rates"),
        ("tpu_v5e", "float16", "tpu_v5e has no known matmul rate for float16; it has bf16, int8, int4"),
    ],
)
def test_no_rate(chip: str, dtype: str, message: str) -> None:
    with pytest.raises(ChipError) as caught:
        load_chip(chip).matmul_rate(dtype)
    assert str(caught.value).startswith(message)


def test_vector_rate_counts_what_the_sheet_counts() -> None:
    """H100: 132 SMs x 128 lanes x 1.98 GHz, twice with fused multiply-adds; the book's 33.5e12 is without."""
    h100, tpu = load_chip("h100"), load_chip("tpu_v5e")
    lanes = 132 * 128 * 1.98e9
    assert float(h100.vector_rate("float32") or 0) == pytest.approx(2 * lanes, rel=1e-3)
    assert float(h100.vector_rate("float32", fma=False) or 0) == pytest.approx(lanes, rel=1e-3)
    assert tpu.vector_rate("float32") == tpu.vector_rate("float32", fma=False) == 61 * 10**11
    assert tpu.vector_rate("bfloat16") == tpu.vector_rate("float32")
    assert h100.vector_rate("int64") is None
    gcd = load_chip("mi250x_gcd")
    assert gcd.vector_rate("float32") == 479 * 10**11
    assert gcd.vector_rate("float32", fma=False) == Fraction(239 * 10**11, 2)
    assert load_chip("gaudi2").vector_rate("float32") is None


def test_settings() -> None:
    chip = load_chip("h100", {"memory.bandwidth": "8.2e11", "matrix.bfloat16": 2e14, "memory.capacity": "16Gi"})
    assert chip.memory_bandwidth == 82 * 10**10
    assert chip.matmul_rate("bf16") == 2 * 10**14
    assert chip.memory_capacity == 2**34
    assert chip.label == "h100_sxm*"
    assert chip.sources["memory.bandwidth"] == "set by hand"
    assert load_chip("m2", {"matrix.bf16": "1T"}).ridge("bf16") == 10
    assert load_chip("h100", {"memory.bandwidth": Decimal("0.1e12")}).memory_bandwidth == 10**11
    scaled = load_chip("mi300x", {"link.xgmi.link_one_way": "32e9"}).links["xgmi"]
    assert (scaled.one_way, scaled.two_way, scaled.peer_one_way) == (224 * 10**9, 448 * 10**9, 32 * 10**9)
    both = load_chip("tpu_v5e@book", {"memory.bandwidth": 9e11})
    assert both.ridge("bf16") == Fraction(197 * 10**12, 9 * 10**11)
    assert both.label == "tpu_v5e@book*"


ABSURD = [
    "-1",
    0,
    "nan",
    "inf",
    float("nan"),
    float("inf"),
    1e300,
    "1e999999999",
    True,
    None,
    "",
    "12 GB/s",
    10**5000,
    "1__.",
    [1],
]


@pytest.mark.parametrize("value", ABSURD, ids=range(len(ABSURD)))
def test_absurd_settings(value: object) -> None:
    message = refusal("h100", memory__bandwidth=value)
    assert message.startswith("setting: memory.bandwidth = ")
    assert message.endswith("is not a bandwidth in bytes/s from 1e3 to 1e18, such as 8.2e11")


def test_unknown_settings() -> None:
    assert refusal("h100", memory__bandwith=1e12).startswith("unknown setting 'memory.bandwith'; did you mean memory.bandwidth")
    message = refusal("t4", zzzzz=1)
    assert message.startswith("unknown setting 'zzzzz'; this chip has link.host.one_way, matrix.fp16, matrix.int4")
    assert "link.ici" not in message
    assert refusal("t4", matrix__flop=1e12).startswith("unknown setting 'matrix.flop'; did you mean matrix.fp")


def test_least_user_file(tmp_path: Path) -> None:
    path = write(tmp_path, MINE)
    chip = load_chip(path)
    assert (chip.id, chip.name, chip.path) == ("my", "Mine", path)
    assert chip.ridge("bfloat16") == 100
    assert chip.vector_rate("float32") is None
    assert chip.memory_capacity is None
    assert load_chip(path, {"memory.bandwidth": 2e12}).ridge("bf16") == 50
    with_preset = write(tmp_path, MINE + "[preset.half.memory]\nbandwidth = 5e11\n")
    assert load_chip(with_preset + "@half").ridge("bf16") == 200


def test_decimals_stay_exact(tmp_path: Path) -> None:
    chip = load_chip(write(tmp_path, MINE.replace("1e14", "123.456789e12").replace("1e12", "0.1e12")))
    assert chip.matmul_rate("bf16") == 123456789 * 10**6
    assert chip.memory_bandwidth == 10**11


MISTAKES = [
    (MINE.replace('name = "Mine"', ""), "the chip has no name; write name ="),
    (MINE.replace("bandwidth = 1e12", ""), "the chip has no memory bandwidth; write bandwidth = 8.2e11"),
    (MINE.replace("bf16 = 1e14", ""), "the chip has no rate; write for example bf16 = 1.97e14 (FLOP/s) under [matrix]"),
    (MINE.replace("1e14", "989"), "matrix.bf16 = 989 is not a rate in FLOP/s from 1e6 to 1e21, such as 1.97e14"),
    (MINE.replace("1e14", "-1e14"), "matrix.bf16 = -1E+14 is not a rate"),
    (MINE.replace("1e14", "0"), "matrix.bf16 = 0 is not a rate"),
    (MINE.replace("1e14", "nan"), "matrix.bf16 = NaN is not a rate"),
    (MINE.replace("1e14", "inf"), "matrix.bf16 = Infinity is not a rate"),
    (MINE.replace("1e14", "1e999999999"), "matrix.bf16 = 1E+999999999 is not a rate"),
    (MINE.replace("1e14", "true"), "matrix.bf16 = true is not a rate"),
    (MINE.replace("1e14", '"1e14"'), "matrix.bf16 = '1e14' is not a rate"),
    (MINE.replace("1e14", "0x" + "f" * 3900), "matrix.bf16 = a number of thousands of digits is not a rate"),
    (MINE.replace("1e14", "9" * 3900), "matrix.bf16 = 9999"),
    (MINE.replace("1e14", "1979-05-27"), "matrix.bf16 = 1979-05-27 is not a rate"),
    (MINE.replace("1e14", "[1e14]"), "matrix.bf16 = [Decimal('1E+14')] is not a rate"),
    (MINE.replace("1e12", "820"), "memory.bandwidth = 820 is not a bandwidth in bytes/s from 1e3 to 1e18, such as 8.2e11"),
    (MINE.replace("bf16", "bf61"), "unknown key 'matrix.bf61'; did you mean bf16"),
    (MINE.replace("[matrix]", "[matrx]"), "unknown key 'matrx'; did you mean matrix?"),
    ("year = 20.5\n" + MINE, "year = 20.5 is not a year, a whole number from 1950 to 2100"),
    ("kind = 'abacus'\n" + MINE, "kind = 'abacus' is not one of gpu, tpu, npu, soc, cpu"),
    (MINE.replace('"Mine"', "3"), "name = 3 is not a text of one line"),
    (MINE.replace('"Mine"', '"""a\nb"""'), "name = 'a\\nb' is not a text of one line"),
    ("matrix = 3\n" + MINE.replace("[matrix]\nbf16 = 1e14\n", ""), "matrix = 3 is not a table, written [matrix]"),
    ("link = 3\n" + MINE, "link = 3 is not a set of tables, written [link.NAME]"),
    (MINE + "[link.'x y']\none_way = 1e9\n", "link.'x y' is not a name; use small letters, digits and _, at most 40"),
    (MINE + "[link.a]\npod = []\n", "link.a.pod = [] is not a list of 1 to 6 whole numbers"),
    (MINE + "[preset.a.matrix]\nbf16 = 1\n", "preset.a.matrix.bf16 = 1 is not a rate"),
    (MINE + "[preset.a]\nname = 'x'\n", "unknown key 'preset.a.name'"),
    (MINE + "[measured]\nspeed = -1\n", "measured.speed = -1 is not a positive number"),
    (MINE + "[matrix]\n", "no valid TOML: Cannot declare"),
    ("name = ", "no valid TOML: Invalid value"),
    ("x = " + "[" * 3000, "nested too deeply"),
    ("x" * 5000, "line 1 has more than 4000 characters or 200 dots"),
    ("a." * 1000 + "a = 1", "line 1 has more than 4000 characters or 200 dots"),
    ("#\n" * 600_000, "larger than 1 MB, which no chip file is"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_in_user_files(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    assert refusal(path).startswith(f"{path}: {message}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal("no/such.toml") == "no/such.toml: no such chip file"
    assert refusal(str(tmp_path) + "/") == f"{tmp_path}: no such chip file"
    assert "cannot be read" in refusal("a\0b.toml") or "no such chip file" in refusal("a\0b.toml")
    assert "chip file" in refusal("x" * 5000 + ".toml") or "cannot be read" in refusal("x" * 5000 + ".toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert refusal(str(tmp_path / "binary.toml")).endswith("not UTF-8 text (byte 0)")


def test_here_is_the_users_own_chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    place = tmp_path / "costir" / "here.toml"
    what_to_do = "run costir calibrate, which measures this machine and writes it"
    assert refusal("here") == f"no chip called here: {place} does not exist; {what_to_do}"
    place.parent.mkdir()
    place.write_text(MINE)
    assert load_chip("HERE").ridge("bf16") == 100
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hardware.here_path() == tmp_path / ".config" / "costir" / "here.toml"


def test_a_chip_cannot_be_changed() -> None:
    chip = load_chip("h100")
    with pytest.raises(TypeError):
        chip.matrix["bf16"] = Fraction(1)  # type: ignore[index]
    with pytest.raises(AttributeError):
        chip.matrix._items = {}
    with pytest.raises(AttributeError):
        chip.name = "x"  # type: ignore[misc]
    assert hash(chip) == hash(load_chip("h100"))
    assert pickle.loads(pickle.dumps(chip)) == chip


def test_describe_shows_units_and_sources() -> None:
    rows = {r.quantity: r for r in describe(load_chip("tpu_v5e@book"))}
    assert rows["matrix.bf16"].value == "197 TFLOP/s"
    assert rows["matrix.int8"].value == "394 TOP/s"
    assert rows["memory.bandwidth"].value == "820 GB/s"
    assert rows["memory.bandwidth"].source == "How to Scale Your Model, chapters 1, 2 and 7"
    assert rows["ridge.bf16"].value == "240.2 FLOP/B"
    assert rows["onchip.vmem.capacity"].value == "134.2 MB (128 MiB)"
    assert rows["link.ici.latency"].value == "1 us"
    assert {r.quantity: r for r in describe(load_chip("h100"))}["measured.hbm_copy"].value == "3 TB/s"


def markdown() -> str:
    rows = [hardware.TABLE_COLUMNS, ("---",) * len(hardware.TABLE_COLUMNS), *table()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def test_table_in_the_docs() -> None:
    """Write it anew with COSTIR_UPDATE_DOCS=1."""
    before, rest = DOCS.read_text().split("<!-- table -->\n")
    shown, after = rest.split("\n<!-- end of table -->")
    if os.environ.get("COSTIR_UPDATE_DOCS"):
        DOCS.write_text(f"{before}<!-- table -->\n{markdown()}\n<!-- end of table -->{after}")
        return
    assert shown == markdown()


def test_example_in_the_docs(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.S)
    assert len(examples) >= 2
    for text in examples:
        assert isinstance(load_chip(write(tmp_path, text)), Chip)


def test_importing_needs_neither_sympy_nor_torch() -> None:
    code = "import sys, costir.hardware as h; h.table(); print({'torch', 'sympy', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


scalars = st.one_of(
    st.booleans(), st.integers(), st.sampled_from(["1e14", "2.5e12", "nan", "inf", "-1.0", "1e9999", "0x10", "'a'", "[]", "{}"])
)
KEYS = """name year kind matrix.bf16 matrix.note memory.bandwidth vector.fp32 link.a.links link.a.pod preset.p.matrix.bf16
preset.p.link.a.one_way measured.x onchip.l2.capacity matrix preset x.y.z ''"""
keys = st.sampled_from(KEYS.split())


def refused(request: Callable[[], object]) -> str:
    """The message where a request is refused, "" where it is answered; any other exception is a failure."""
    try:
        request()
    except ChipError as e:
        return e.message
    return ""


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.tuples(keys, scalars), max_size=8), tail=st.text(max_size=20), base=st.booleans())
def test_any_file_loads_or_is_refused(tmp_path: Path, lines: list[tuple[str, object]], tail: str, base: bool) -> None:
    text = "".join(f"{k} = {str(v).lower() if isinstance(v, bool) else v}\n" for k, v in lines)
    path = tmp_path / "any.toml"
    path.write_text((text + MINE if base else text + tail), encoding="utf-8", errors="replace")
    message = refused(lambda: load_chip(str(path)))
    assert message.startswith(str(path)) or all(v > 0 for v in load_chip(str(path)).values.values())


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(content: bytes) -> None:
    message = refused(lambda: chipfile.validate("any.toml", chipfile.parse("any.toml", content)))
    assert message.startswith("any.toml")  # no 200 bytes that hypothesis finds are a chip


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), st.text(max_size=20), st.one_of(st.text(max_size=20), st.floats(), st.integers()))
def test_any_request_is_answered_or_refused(spec: str, key: str, value: str | float) -> None:
    for name, changes in ((spec, {}), ("h100", {key: value}), ("h100", {"memory.bandwidth": value})):
        request = functools.partial(load_chip, name, changes)
        assert refused(request) or request().memory_bandwidth > 0
