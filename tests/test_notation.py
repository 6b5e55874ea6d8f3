"""Notation strings: what they mean is checked with numpy on small arrays, against loops and against the plain product."""

import contextlib
import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costir.errors import CostirError, NotationError, SizeError
from costir.load.notation import parse
from costir.symbolic import size


def sizes_of(graph, values):
    return {size(n): v for n, v in values.items()}


def run(graph, arrays, values):
    """Run the calls with numpy, and check every shape on the way."""
    at = sizes_of(graph, values)
    left, rest = arrays[0], list(arrays[1:])
    for call in graph.calls:
        operands = [left, rest.pop(0)] if rest else [left]
        for array, tensor in zip(operands, call.args["operands"], strict=True):
            assert array.shape == tuple(d.xreplace(at) for d in tensor.shape)
        left = np.einsum(call.args["equation"], *operands)
        assert left.shape == tuple(d.xreplace(at) for d in call.outputs[0].shape)
    assert not rest
    return left


@pytest.mark.parametrize(
    ("text", "shapes", "plain"),
    [
        ("X[B,D] . Y[D,F] -> Z[B,F]", [(2, 3), (3, 5)], lambda x, y: x @ y),
        ("X[B,D] . Y[D,F]", [(2, 3), (3, 5)], lambda x, y: x @ y),
        ("X[B,D] · Y[D,F] → Z[B,F]", [(2, 3), (3, 5)], lambda x, y: x @ y),
        ("bf16[B,8] . [8,8]", [(2, 8), (8, 8)], lambda x, y: x @ y),
        ("[B,8] @ [8,8] -> [B,8]", [(2, 8), (8, 8)], lambda x, y: x @ y),
        ("X[B,4,8] . W[8,4]", [(2, 4, 8), (8, 4)], lambda x, y: x @ y),
        ("X[N] . Y[N] -> Z[]", [(7,), (7,)], np.dot),
        ("X[N],Y[N]", [(7,), (7,)], np.dot),
        ("X[B,T] -> Y[B]", [(2, 3)], lambda x: x.sum(1)),
        ("X[M] . Y[N] -> [M,N]", [(2,), (3,)], np.outer),
        ("X[B,D] . Y[D,F] . Z[F,E]", [(2, 3), (3, 5), (5, 4)], lambda x, y, z: x @ y @ z),
        ("[2,8] . [8,8] . [8,8] . [8,3]", [(2, 8), (8, 8), (8, 8), (8, 3)], lambda a, b, c, d: a @ b @ c @ d),
        ("Q[B,T,N,H] . K[B,S,N,H] -> P[B,N,T,S]", [(2, 3, 4, 5), (2, 6, 4, 5)],
         lambda q, k: q.transpose(0, 2, 1, 3) @ k.transpose(0, 2, 3, 1)),
        ("[B,8] . [8] -> [B,8]", [(2, 8), (8,)], lambda x, y: x * y),
    ],
)  # fmt: skip
def test_meaning(text, shapes, plain):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-5, 5, s) for s in shapes]
    graph = parse(text)
    names = [d.strip() for part in text.split("->")[0].split("→")[0].split("[")[1:] for d in part.split("]")[0].split(",")]
    values = {n: v for n, v in zip(names, itertools.chain(*shapes), strict=True) if not n.isdigit()}
    assert set(graph.sizes) == set(values)
    np.testing.assert_array_equal(run(graph, arrays, values), plain(*arrays))


@st.composite
def products(draw):
    """Random operands over five names, and an output of some of the names that occur."""
    operands = [
        draw(st.lists(st.sampled_from("BDFTN"), min_size=1, max_size=3, unique=True)) for _ in range(draw(st.integers(1, 3)))
    ]
    used = list(dict.fromkeys(n for o in operands for n in o))
    return operands, draw(st.lists(st.sampled_from(used), max_size=3, unique=True))


@settings(deadline=None, max_examples=60)
@given(products(), st.fixed_dictionaries({n: st.integers(1, 3) for n in "BDFTN"}))
def test_any_product_against_loops(product, values):
    operands, output = product
    text = " . ".join(f"X{i}[{','.join(o)}]" for i, o in enumerate(operands)) + f" -> [{','.join(output)}]"
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-3, 3, [values[n] for n in o]) for o in operands]
    used = list(dict.fromkeys(n for o in operands for n in o))
    expected = np.zeros([values[n] for n in output], dtype=int)
    for index in itertools.product(*(range(values[n]) for n in used)):
        at = dict(zip(used, index, strict=True))
        expected[tuple(at[n] for n in output)] += np.prod(
            [a[tuple(at[n] for n in o)] for a, o in zip(arrays, operands, strict=True)]
        )
    np.testing.assert_array_equal(run(parse(text), arrays, {n: values[n] for n in used}), expected)


@pytest.mark.parametrize(
    ("text", "dtype", "storage"),
    [
        ("X[B,D] . Y[D,F]", "", ["bfloat16", "bfloat16", "bfloat16"]),
        ("fp32 X[B,D] . fp32 Y[D,F]", "", ["float32", "float32", "float32"]),
        ("X[B,D] . Y[D,F]", "fp32", ["float32", "float32", "float32"]),
        ("X[B,D] . Y[D,F]", "bf16,weights=int8", ["bfloat16", "int8", "bfloat16"]),
        ("bf16[B,D] . int8[D,F]", "", ["bfloat16", "int8", "bfloat16"]),
        ("int8[B,D] . int8[D,F]", "", ["int8", "int8", "int8"]),
        ("int8[B,D] . int8[D,F] -> int32[B,F]", "", ["int8", "int8", "int32"]),
        ("X[B,D] . bf16 Y[D,F]", "weights=int4", ["bfloat16", "bfloat16", "bfloat16"]),
        ("X[B,D] . Y[D,F]", "weights=int4", ["bfloat16", "int4", "bfloat16"]),
        ("fp8[B,D] . bf16[D,F]", "", ["float8_e4m3fn", "bfloat16", "bfloat16"]),
    ],
)
def test_storage_types(text, dtype, storage):
    (call,) = parse(text, dtype).calls
    assert [t.dtype for t in (*call.args["operands"], *call.outputs)] == storage


def test_roles():
    def roles(text):
        return [t.role for c in parse(text).calls for t in c.args["operands"]]

    assert roles("X[B,D] . Y[D,F]") == ["input", "weight"]
    assert roles("Q[B,T,H] . K[B,S,H] -> P[B,T,S]") == ["input", "input"]
    assert roles("X[N] . Y[N]") == ["input", "input"]
    assert roles("X[B,D] . U[D,F] . W[F,D2]") == ["input", "weight", "activation", "weight"]
    graph = parse("X[B,D] . U[D,F] . W[F,E]")
    assert [w.path for w in graph.weights] == ["U", "W"]
    assert graph.params.xreplace(sizes_of(graph, {"D": 3, "F": 5, "E": 7})) == 3 * 5 + 5 * 7


def test_one_operand_twice_is_one_memory():
    x, y = parse("X[N] . X[N] -> []").calls[0].args["operands"]
    assert x.ref == y.ref
    x, y = parse("X[N] . Y[N] -> []").calls[0].args["operands"]
    assert x.ref != y.ref


def test_base_sizes():
    assert dict(parse("X[B,D] . Y[D,F]").sizes) == {"B": 1, "D": 4096, "F": 4096}
    assert dict(parse("X[B,D] . Y[D,F]", sizes={"D": 8}).sizes) == {"B": 1, "D": 8, "F": 4096}
    assert dict(parse("bf16[8,128k] . [128k,F]").sizes) == {"F": 4096}
    with pytest.raises(SizeError, match=r"no size 'Q'; known: B, D, F"):
        parse("X[B,D] . Y[D,F]", sizes={"Q": 3})
    with pytest.raises(SizeError, match="whole number"):
        parse("X[B,D] . Y[D,F]", sizes={"D": 0})


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("X[B,D . Y", 7, "expected ',' or ']', found '.'"),
        ("X[B,D] . Y[D,F", 15, "expected ',' or ']', found the end"),
        ("X[B,,D]", 5, "expected a dimension"),
        ("X[B,D] Y[D,F]", 8, "expected '.' or '->'"),
        ("X[B,D] . ", 10, "expected an operand"),
        ("X[B,D] -> Y[B] foo", 16, "expected the end"),
        ("foo X[B]", 1, "foo is no data type"),
        ("X[0] -> []", 3, "0 is no size"),
        ("X[2D] -> []", 3, "2D is no size"),
        ("X[-1]", 3, "expected a dimension"),
        ("X[B,D] . Y[D,F] -> Z[B,Q]", 24, "Q is in the output and in no operand"),
        ("X[B,D] . Y[D,F] -> Z[B,B]", 24, "stands twice in the output"),
        ("X[B,D] . W[D,D]", 14, "stands twice in one operand"),
        ("X[B,D] . [4096,F]", 11, "D and 4096 meet"),
        ("[B,8192] . [4096,F]", 13, "8192 and 4096 meet"),
        ("[8,B,16] . [8,16,F] -> [8,B,F]", 13, "16 and 8 meet"),
        ("X[B,64] . Y[B,64] -> [B]", 15, "may be one axis or two"),
        ("[B,T,64] . [B,S,64] -> [B,T,S]", 17, "may be one axis or two"),
        ("[8,16] . [16,8] -> [8]", 21, "may be one of two axes"),
        ("X[M] . Y[N]", 8, "share no dimension"),
        ("X[B,T]", 7, "needs an output"),
    ],
)
def test_slips_point_at_the_character(text, at, says):
    with pytest.raises(NotationError) as caught:
        parse(text)
    sentence, shown, caret = str(caught.value).splitlines()
    assert says in sentence
    assert f"(character {at})" in sentence
    assert shown.strip() == text.strip()
    assert len(caret) - 4 == at


@settings(deadline=None, max_examples=150)
@given(st.text(alphabet="XYBDF[](){},.->·@_ 0123456789klmbf16", max_size=40))
def test_no_text_raises_anything_else(text):
    with contextlib.suppress(CostirError):
        parse(text)


def test_needs_no_torch():
    code = "import sys, costir.load, costir.load.notation as n; n.parse('X[B,D] . Y[D,F]'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x[B,D] . W[D,F] . V[F,D] -> y[B,D]", "D"),  # an MLP whose output has the name of its input
        ("q[B,T,H] . k[B,S,H] . v[B,S,H] -> y[B,T,H]", "H"),  # attention
        ("x[B,D] . W[D,F] . V[F,E] -> y[B,E]", ""),
        ("a[T,D] . b[T,D] . c[T,D] -> y[T,D]", ""),  # all elementwise, and meant so
        ("x[B,D] . w[D] -> y[B,D]", ""),
    ],
)
def test_a_chain_in_which_a_name_comes_back_says_that_it_is_not_summed(text, said):
    notes = [n.split()[0] for n in parse(text).notes if "not summed" in n]
    assert notes == ([said] if said else [])
