"""Coverage-guided fuzzing of the answer checker; not a test, since it runs for as long as one likes.

    pip install atheris
    python tests/fuzz_answers.py -max_total_time=600 -max_len=200 -timeout=10 -rss_limit_mb=2000 corpus/

What it found worth keeping is in tests/corpus/answers.json, which tests/test_exercises.py runs through the checker.
"""

import sys
import time

import atheris

with atheris.instrument_imports(include=["costir"]):
    from costir.exercises.catalog import built_in
    from costir.exercises.checker import VERDICTS, check_part

PARTS = [("rl.q1", "intensity"), ("rl.q1", "lower"), ("rl.q1", "B_crit"), ("rl.q2", "B_crit"), ("sh.q4", "S1"), ("tf.q4", "I"),
         ("seed.think4", "D_crit"), ("tpu.q5", "total"), ("gpu.2.3", "t"), ("seed.q_dot", "bytes")]  # fmt: skip
SLOW = 1.0


def one(data: bytes) -> None:
    text = data[1:].decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode("utf-8")
    exercise, part = PARTS[data[0] % len(PARTS)] if data else PARTS[0]
    started = time.process_time()
    verdict = check_part(built_in().find(exercise), part, text, "zh" if len(data) % 2 else "en")
    assert verdict.verdict in VERDICTS
    took = time.process_time() - started
    assert took < SLOW * 5, f"{took:.1f} s for {text!r}"  # instrumented code is several times slower


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
