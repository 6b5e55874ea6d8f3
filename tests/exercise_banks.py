"""Banks of one exercise, written for a test, and what is asked of a refusal."""

from __future__ import annotations


def bank_of(folder, part, symbols="{a: rows, b: columns}", name="my.yaml", more=""):
    """A bank of one exercise, my.1, with one part."""
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(
        f"exercises:\n- id: my.1\n  prompt: A question\n  symbols: {symbols}\n  parts:\n  - {part}\n{more}", encoding="utf-8"
    )
    return path


def derived(subject):
    return f'{{id: p, kind: formula, derive: {{let: {{f: {{subject: "{subject}", quantity: flops}}}}}}}}'


def refused(found, *words):
    code, out, err = found
    assert (code, out) == (2, "")
    assert err.startswith("costir: ")
    assert "internal" not in err
    for word in words:
        assert word in err, err
    return err
