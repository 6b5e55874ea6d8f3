"""The command line: arguments in, exit code out. Nothing heavy is imported before a verb needs it.

    costir VERB SUBJECT [question] [conditions]

Exit codes: 0 yes or done; 1 checked and wrong; 2 bad input; 130 interrupted; 141 the reader of a pipe left.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from costir import output
from costir.errors import CostirError, nearest

DONE, WRONG, BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
VERBS = ("analyze", "shard", "solve", "check", "mfu", "plan", "collective", "chips", "exercise", "calibrate", "measure", "demo")
FORMATS = ("text", "markdown", "json", "csv", "latex", "html")

DESCRIPTION = """\
What a PyTorch model costs, in closed form in its own size names, and the sizes at which a chip's limits change.

  costir analyze gpt2.json --chip h100              operators with FLOPs, bytes, time and what binds
  costir analyze llama.json --phase decode          a step of serving; train: a training step and its memory
  costir analyze model.py --mesh X=8,Y=4 --parallel fsdp=X,tp=Y --chip h100
  costir solve "bf16[B,8192] . [8192,8192]" --for B --chip tpu_v5e
  costir check "X[B,D] . Y[D,F]" "flops = 2*B*D*F"  is my own formula right?
  costir mfu gpt2.json --chip h100 --rate 90ktok/s  model FLOP utilisation of a run that I measured
  costir plan llama.json --chip h100 --devices 512 --batch 4M --tokens 15T
  costir collective all_reduce --bytes 1e9 --chip h100 --mesh X=8
  costir chips h100                                 the chips that are known, with sources
  costir exercise next                              exercises on rooflines, checked
  costir demo all                                   five experiments on this machine, once costir calibrate has run

SUBJECT is a Python file (model.py, model.py:Name), a Hugging Face config.json, a torch.export file, or a notation
string. Python files are run, with your rights; everything else is only read.
"""


class _Parser(argparse.ArgumentParser):
    """Errors as exceptions, so that every error of costir looks alike."""

    def error(self, message: str) -> NoReturn:
        raise CostirError(message, self.hint(message))

    def hint(self, message: str) -> str:
        """The nearest option for a mistyped one."""
        known = set(_options(self))
        wrong = next((w.partition("=")[0] for w in message.split() if w.startswith("--")), "")
        if not message.startswith("unrecognized") or not wrong:
            return f"see {self.prog} --help"
        return f"{wrong} is an option of other verbs: see {self.prog} VERB --help" if wrong in known else nearest(wrong, known)


def _options(p: argparse.ArgumentParser) -> Iterator[str]:
    """The long options of a parser and its verbs."""
    for action in p._actions:
        yield from (o for o in action.option_strings if o.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from _options(verb)


def _conditions(phase: str | None = "forward", default: str = "forward", serving: bool = False) -> _Parser:
    """The conditions that every verb with a subject takes; what runs by default differs, and is said in words."""
    p = _Parser(add_help=False)
    m = p.add_argument_group("model")
    m.add_argument("--model", metavar="NAME", help="the class or function of a Python file")
    m.add_argument("--input", metavar="SPEC", action="append", default=[], help="an input of the model: 'x: bf16[B, T, D]'")
    phases = ("forward", "backward", "train", *(("prefill", "decode") if serving else ()))
    m.add_argument("--phase", choices=phases, default=phase, help=f"what runs (default: {default})")
    m.add_argument("--name", metavar="s77=B", dest="names", action="append", default=[], help="rename a symbol of a .pt2 file")
    m.add_argument("--optimizer", metavar="NAME", help="adamw, sgd or another of torch.optim, for --phase train")
    if serving:
        kinds, words = ("dynamic", "static", "serving"), "cache of --phase prefill and decode, as it runs or as engines serve"
        m.add_argument("--cache", choices=kinds, default="dynamic", help=f"{words} (default: dynamic)")
    m.add_argument("--recompute", metavar="none|blocks|all|PATH", default="none",
                   help="modules whose forward pass runs again in the backward pass, so that less is kept")  # fmt: skip
    m.add_argument("--micro-batches", metavar="K", default="1", help="forward and backward passes that make one step")
    s = p.add_argument_group("sizes")
    s.add_argument("--size", metavar="B=32", action="append", default=[], help="move the base point; 2k is 2048")
    s.add_argument("--keep", metavar="B,T", help="keep only these letters and put numbers for the other sizes")
    s.add_argument("--sweep", metavar="T=2k:128k:x2", action="append", default=[], help="many points: a:b:x2, a:b:+8 or 1,2,4")
    c = p.add_argument_group("counting")
    c.add_argument("--dtype", metavar="TYPE", help="bf16, or bf16,weights=int8,kv=fp8")
    c.add_argument("--attention", choices=("full", "causal"), default="full", help="scores that count (default: full)")
    c.add_argument(
        "--count", choices=("standard", "exact"), default="standard", help="2 per multiply-add, or 2k-1 per dot product"
    )
    c.add_argument("--traffic", metavar="KIND", default="eager",
                   help="bytes: eager (default), inductor or xla (fused kernels), ideal; analyze: all together")  # fmt: skip
    h = p.add_argument_group("chip")
    h.add_argument("--chip", metavar="NAME", action="append", default=[], help="h100, tpu_v5e@book, my.toml; several: a,b")
    h.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="change a chip: memory.bandwidth=8.2e11")
    h.add_argument(
        "--for",
        metavar="SIZE",
        dest="unknown",
        help="the size to solve for: B, T, tokens (= B*T), ..., split",
    )
    _output(p)
    return p


def _mesh(d: Any) -> None:
    d.add_argument(
        "--mesh", metavar="X=8,Y=4", action="append", default=[], help="devices along named axes; the last are neighbours"
    )
    d.add_argument(
        "--parallel",
        metavar="fsdp=X,tp=Y",
        default="",
        help="what runs along them: dp, fsdp, hsdp, tp, sp, ep, cp, pp, a file",
    )


def _devices(p: argparse.ArgumentParser) -> None:
    d = p.add_argument_group("devices")
    _mesh(d)
    d.add_argument(
        "--devices", metavar="N", default="", help="how many devices the mesh must have, or with --for split, are to be split"
    )
    d.add_argument("--overlap", choices=("none", "op", "full"), default="op", help="what goes on at once (default: op)")
    d.add_argument(
        "--way", metavar="TEXT", default="", help="of several ways to compute it, the one with this: all_reduce, ..."
    )
    _links(d)


def _links(d: Any, latency: bool = True) -> None:
    d.add_argument(
        "--algorithm", metavar="NAME", default="", help="of collectives: ring, ring_two_way, line, book, tree, direct, ..."
    )
    d.add_argument(
        "--link", metavar="X=dcn", action="append", default=[], help="the link that an axis lies on, if not the nearest"
    )
    d.add_argument("--planned", action="store_true", help="link rates that the scaling book plans with, not the data sheet's")
    if latency:
        d.add_argument("--latency", action="store_true", help="add what the hops of collectives take")


def _output(p: argparse.ArgumentParser) -> None:
    o = p.add_argument_group("output")
    o.add_argument("--format", choices=FORMATS, help="default: by the suffix of -o, else text")
    o.add_argument("-o", "--output", metavar="FILE", help="write there, never over a file that costir did not write")
    o.add_argument("--force", action="store_true", help="write over any file")
    o.add_argument("--all", action="store_true", help="do not sum up small operators")
    o.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=argparse.SUPPRESS)
    _debug(o)


def _debug(p: Any) -> None:
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")


def parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    top = _Parser(
        prog="costir", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    top.add_argument("--version", action="store_true", help="print the version")
    _debug(top)
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser, title="verbs")
    conditions, measurable = _conditions(serving=True), _conditions()

    def verb(name: str, short: str, long: str, given: _Parser = conditions) -> argparse.ArgumentParser:
        other = ["shard"] if name == "analyze" else []  # the word for sharded notation
        made = verbs.add_parser(name, aliases=other, help=short, description=long, parents=[given], allow_abbrev=False)
        made.add_argument("subject", metavar="SUBJECT")
        return made

    a = verb("analyze", "cost of every operator", "What every operator of a model costs.")
    a.add_argument(
        "--explain", metavar="PATH", help="one operator: formula, rule, numbers, source line; or total: term by term"
    )
    a.add_argument("--plot", metavar="roofline|memory[=FILE]", help="draw a roofline, or the memory of the run (svg or png)")
    a.add_argument("--memory", action="store_true", help="what the run holds at its peak; always said of a training step")
    a.add_argument("--critical-path", action="store_true", help="the time with operators side by side (one more run)")
    _devices(a)
    s = verb("solve", "critical sizes on a chip", "The size at which what binds changes.")
    s.add_argument("--fits", action="store_true", help="the largest size, or fewest devices along an axis, that fits")
    _devices(s)
    s.add_argument("--measure", action="store_true", help="measure it on this machine, too (a calibrated --chip)")
    t = verb(
        "measure",
        "run it here: bound, estimate, measured",
        "Bound, estimate and measurement on a calibrated machine.",
        measurable,
    )
    _mesh(t.add_argument_group("devices"))
    t.add_argument("--why", action="store_true", help="where the measured time goes")
    t.add_argument("--plot", metavar="roofline|sweep[=FILE]", help="draw the measured points (svg or png)")
    k = verb("check", "is my formula right?", "Check your own formula. Exit code 1: wrong.")
    k.add_argument("formula", metavar='"flops = 2*B*D*F"')
    _mesh(k.add_argument_group("devices"))
    m = verb(
        "mfu",
        "model FLOP utilisation of a run that you measured",
        MFU,
        _conditions(None, "train; forward for what has no other"),
    )
    m.add_argument("--rate", metavar="10000tok/s", default="", help="of the whole job: tok/s, seq/s or step/s; 10k is 10000")
    m.add_argument("--time", metavar="120ms", default="", help="of one step, with the batch of --size")
    m.add_argument("--devices", metavar="N", default="", help="chips that the job ran on (default: 1, or those of --mesh)")
    _mesh(m)
    m.add_argument("--tokens", metavar="B*T", default="", help="the sizes whose product is the tokens of a step")
    _plan(verb("plan", "the best split of devices", PLAN, _conditions("train", "train")))
    n = verbs.add_parser(
        "collective", help="how long devices take to send each other", description=COLLECTIVE, allow_abbrev=False
    )
    n.add_argument("kind", metavar="KIND", help="all_gather, reduce_scatter, all_reduce, all_to_all, broadcast or permute")
    n.add_argument("--bytes", metavar="V", required=True, help="the payload, bytes of the whole array: 1e9, 64Mi")
    n.add_argument(
        "--mesh", metavar="X=8", action="append", default=[], help="devices along named axes; the last are neighbours"
    )
    n.add_argument("--axes", metavar="X,Y", default="", help="the axes that span the group (default: all)")
    n.add_argument("--chip", metavar="NAME", required=True, help="h100, tpu_v5e@book, my.toml")
    n.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="change a chip: link.nvlink.latency=1e-6")
    _links(n, latency=False)
    _output(n)
    c = verbs.add_parser("chips", help="the known chips", description="The known chips, with sources.", allow_abbrev=False)
    c.add_argument("name", metavar="NAME", nargs="?")
    c.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="change a value")
    _output(c)
    b = verbs.add_parser("calibrate", help="measure this machine", description=CALIBRATE, allow_abbrev=False)
    b.add_argument("--device", metavar="cpu|cuda[:N]", default="", help="the CPU (default), or a GPU: then --chip here-gpu")
    b.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch on the CPU (default: 1)")
    b.add_argument("--patience", type=float, metavar="SECONDS",
                   help="how long to wait for quiet moments (default: all takes under a minute)")  # fmt: skip
    b.add_argument(
        "--collectives", action="store_true", help="measure collectives of torch.distributed, and add them to the file"
    )
    b.add_argument("--processes", type=int, metavar="N", help="with --collectives: start N processes here; not under torchrun")
    b.add_argument("--chip", metavar="NAME", default="", help="with --collectives: add them to a copy of this chip's file")
    _output(b)
    d = verbs.add_parser("demo", help="five experiments on this machine", description=DEMO, allow_abbrev=False)
    d.add_argument("name", metavar="NAME", choices=(*DEMOS, "all"), help=f"{', '.join(DEMOS)} or all")
    d.add_argument("--chip", metavar="FILE", default="here", help="what costir calibrate wrote (default: here)")
    d.add_argument("--lang", metavar="en|zh", help="language (default: that of the locale)")
    _output(d)
    d.set_defaults(width=130)
    _exercise(verbs.add_parser("exercise", help="exercises, and a checker", description=EXERCISE, allow_abbrev=False,
                               formatter_class=argparse.RawDescriptionHelpFormatter))  # fmt: skip
    return top


def _plan(p: argparse.ArgumentParser) -> None:
    """What `costir plan` takes."""
    p.add_argument("--devices", metavar="N", default="", help="how many devices there are")
    p.add_argument(
        "--batch", metavar="4M", default="", help="tokens of a step on all devices together; 4M is 2**22, as in sizes"
    )
    p.add_argument("--tokens", metavar="15T", default="", help="tokens of the whole run, for its days; 15T is 15e12")
    p.add_argument("--strategies", metavar="fsdp,tp", default="fsdp,hsdp,tp",
                   help="which may be used, alone or together: fsdp, hsdp, dp; tp, sp, ep (default: fsdp,hsdp,tp)")  # fmt: skip
    p.add_argument("--best", metavar="N", default="5", help="how many splits are shown (default: 5)")
    p.add_argument("--overlap", choices=("none", "op", "full"), default="op", help="what goes on at once (default: op)")
    _links(p)


PLAN = "Of all ways to divide a step among devices, those that fit their memory and take least time, and why others are worse."
MFU = "What share of a chip's peak a run reached, by each convention in use: full and causal attention, 6N, and as traced."
COLLECTIVE = "A collective on a chip's links, by each algorithm: formula, time, latency, and below which size latency rules."
CALIBRATE = """\
Measure this machine in under a minute; the chip file that is written is then known as `--chip here`, that of a GPU as
`--chip here-gpu`, of the second as `--chip here-gpu1`."""

DEMOS = ("matmul", "bandwidth", "fusion", "step", "width")
DEMO = "Experiments of a lesson on this machine, predicted and measured; costir calibrate must have run before."
EXERCISE = """\
Exercises on rooflines; the checker says what a wrong answer forgot. Exit code 1: wrong.

  costir exercise next                              the first that is not done
  costir exercise check rl.q1 b="B > 240"           some parts; without answers it asks for them
  costir exercise hint rl.q1                        again: a second hint
"""


def _exercise(p: argparse.ArgumentParser) -> None:
    """The verbs of `costir exercise`."""
    _debug(p)
    common = _Parser(add_help=False)
    common.add_argument("--lang", metavar="en|zh", help="language (default: that of the locale)")
    common.add_argument("--bank", metavar="FILE", help="your own exercises, in the format of docs/exercises.md")
    common.add_argument("--trust", action="store_true", help="let --bank run the Python files that it names")
    _output(common)
    common.set_defaults(width=110)
    verbs = p.add_subparsers(dest="action", metavar="VERB", parser_class=_Parser, title="verbs")

    def verb(name: str, text: str, *arguments: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text, parents=[common], allow_abbrev=False)
        for a in arguments:
            made.add_argument(a.lower(), metavar=a)
        return made

    for name, text in (("list", "all exercises"), ("next", "the first that is not done")):
        verb(name, text).add_argument("--chapter", metavar="NAME", help="seed, rl, tpu, ... or a word of the title")
    verb("show", "the prompt", "ID")
    verb("check", "check answers", "ID").add_argument(
        "answer", metavar="ANSWER", nargs="*", help='"2*B*D*F", or PART="B > 240"'
    )
    verb("hint", "a hint; a second call says more", "ID").add_argument("number", metavar="N", type=int, nargs="?")
    verb("solution", "step by step", "ID")
    verb("verify", "all faults of a bank, derivations too (the built-in one, or --bank)")
    verb("grade", "many answers of many students: csv, yaml or json", "FILE")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never raises for what a user did.

    Returns:
        the exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    output.open_streams()
    try:
        code = _run(arguments)
        output.flush()
        return code
    except BrokenPipeError:
        output.forget_stdout()
        return PIPE_CLOSED
    except SystemExit as stop:  # argparse ends --help this way
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except CostirError as error:
        return _complain(error.message, error.hint, debug)
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:300]
        report = "please report this, with all of the above" if debug else "please report this, with what --debug prints"
        return _complain(f"internal error, {type(error).__name__}: {first}", report, debug)
    except BaseException as error:  # a user's program may raise anything
        return _complain(f"the program raised {type(error).__name__}: {str(error)[:300]}".rstrip(": "), "", debug)


def _run(arguments: list[str]) -> int:
    _guess_verb(arguments)
    options = parser().parse_args(arguments)
    options.debug = "--debug" in arguments  # before the verb or after it: argparse forgets what stood before
    if options.version:
        import costir

        print(f"costir {costir.__version__}")
        return DONE
    if options.verb is None:
        parser().print_help()
        return DONE
    if options.verb == "calibrate":
        from costir import calibrate_commands

        return calibrate_commands.calibrate(options)
    if options.verb == "measure" or getattr(options, "measure", False):
        from costir import measure_commands

        return int(getattr(measure_commands, options.verb)(options))
    if options.verb == "demo":
        from costir import demo_commands

        return demo_commands.run(options)
    if options.verb == "exercise":
        from costir import exercise_commands

        return exercise_commands.run(options)
    from costir import commands

    return int(getattr(commands, options.verb)(options))


def _guess_verb(arguments: list[str]) -> None:
    """Say what to type where the verb is missing or mistyped."""
    if not arguments or arguments[0].startswith("-") or arguments[0] in VERBS:
        return
    word = arguments[0]
    if len(arguments) > 1 and not arguments[1].startswith("-") and word.isalpha():
        raise CostirError(f"no verb {word!r}", nearest(word, VERBS))
    raise CostirError(
        f"no verb {word[:60]!r}", f"did you mean: costir analyze {word[:60]}?" if not word.isalpha() else nearest(word, VERBS)
    )


def _complain(message: str, hint: str, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    print(f"costir: {message}", file=sys.stderr)
    if hint:
        print(f"        {hint}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
