"""What the checker says, in the languages of the product. The bank's own texts are in the bank."""

from __future__ import annotations

import locale
import os

from costir.errors import CostirError
from costir.exercises.records import LANGUAGES

TEXTS: dict[str, tuple[str, str]] = {
    # verdicts
    "right": ("right", "正确"),
    "rounding": ("right up to rounding: {value}", "在舍入误差内正确：{value}"),
    "tolerance": ("close enough here: {value}", "在允许的误差范围内：{value}"),
    "limit": ("right in the limit {of}, but the exact form is asked", "{of}极限下正确，但题目要求精确形式"),
    "exact": ("that is the exact form; the limit {of} is asked", "这是精确形式；题目要求的是{of}极限"),
    "convention": ("right under another convention, {words}", "在另一种约定下正确：{words}"),
    "slip": ("that is what was printed, and it is a slip: {words}; recomputed, it is {value}",
             "这是书上印的结果，但有误：{words}；重新计算为 {value}"),
    "wrong": ("wrong", "不对"),
    "wrong_because": ("wrong: {why}", "不对：{why}"),
    "unreadable": ("not understood: {why}", "无法理解：{why}"),
    "open": ("this one is practical, there is nothing to check; `costir exercise solution {id}` says what to look for",
             "这是动手题，没有可自动检查的答案；`costir exercise solution {id}` 说明要看什么"),
    "which_part": ("the exercise has {count} parts ({parts}); say which one: {first}=...",
                   "本题有 {count} 问（{parts}）；请指明是哪一问：{first}=..."),
    "large": ("of large {names}", "{names} 很大的"),
    "choose": ("choose one of: {choices}", "请从中选择：{choices}"),
    "numbers_only": ("a formula in {names} is asked, not a number", "题目要求用 {names} 写出公式，而不是一个数"),
    # headings
    "list": ("Exercises", "练习"),
    "chapter": ("chapter", "章节"),
    "parts": ("parts", "小问"),
    "done": ("done", "已完成"),
    "source": ("source", "来源"),
    "letters": ("letters", "符号"),
    "asked": ("asked", "求"),
    "choices": ("choices", "选项"),
    "hint": ("hint", "提示"),
    "hint_of": ("hint {number} of {count}", "提示 {number}/{count}"),
    "more_hints": ("`costir exercise hint {id}` again says more", "再次运行 `costir exercise hint {id}` 会说得更多"),
    "last_hint": ("that was the last one; `costir exercise solution {id}` shows how it is derived",
                  "这是最后一条提示；`costir exercise solution {id}` 给出推导"),
    "no_hints": ("there are no hints for this one", "本题没有提示"),
    "solution": ("Solution", "解答"),
    "answer": ("answer", "答案"),
    "also": ("also right", "其他约定"),
    "printed": ("printed wrongly", "书上的错误"),
    "derived": ("costir derives", "costir 推导"),
    "typed": ("typed", "输入"),
    "verdict": ("verdict", "判定"),
    "says": ("says", "说明"),
    "student": ("student", "学生"),
    "score": ("right", "正确"),
    "answered": ("answered", "作答"),
    "share": ("share", "正确率"),
    "grades": ("Grades", "成绩"),
    "not_right": ("Not right", "不正确的答案"),
    "all_done": ("all {count} exercises are done", "{count} 道练习已全部完成"),
    "how": ("answer with", "作答"),
    "read_as": ("read as", "读作"),
    "given": ("given", "已知"),
    "ask_part": ("{part} ({ask}): ", "{part}（{ask}）："),
    "skip": ("an empty line skips a part", "直接回车跳过该问"),
    # hypotheses
    "macs": ("off by exactly 2: a multiply-add counts as two FLOPs", "恰好差 2 倍：一次乘加算两次运算（FLOPs）"),
    "double": ("twice too much: a multiply-add is two FLOPs, not four", "恰好多 2 倍：一次乘加是两次运算，不是四次"),
    "bytes_2": ("twice too many bytes: were elements taken for twice as wide as they are (fp32 for bf16, say)?",
                "字节数恰好多 2 倍：是否把元素当成了两倍宽（例如把 bf16 当成 fp32）？"),
    "bytes_half": ("half of the bytes: were elements taken for half as wide as they are, or were elements counted, not bytes?",
                   "字节数恰好少一半：是否把元素的宽度算少了一半，或者数的是元素个数而不是字节数？"),
    "intensity_half": ("half of it: a multiply-add counted as one FLOP, or elements with twice their bytes?",
                       "恰好是一半：是否把一次乘加只算一次运算，或者把每个元素的字节数算多了一倍？"),
    "intensity_2": ("twice it: elements with half their bytes, or a multiply-add counted as four?",
                    "恰好是 2 倍：是否把每个元素的字节数算少了一半？"),
    "half": ("exactly half of it: is a factor of 2 missing (FLOPs per multiply-add, bytes per element, directions)?",
             "恰好是一半：是否漏了一个因子 2（一次乘加两次运算、每个元素 2 字节、两个方向）？"),
    "twice": ("exactly twice it: is a factor of 2 too many (sparse peak, both directions of a link, two bytes that cancel)?",
              "恰好是 2 倍：是否多了一个因子 2（稀疏峰值、链路的两个方向、本应约掉的 2 字节）？"),
    "bits": ("off by exactly 8: bits, not bytes", "恰好差 8 倍：用的是比特，不是字节"),
    "prefix": ("off by exactly {factor}: check the prefix of the unit", "恰好差 {factor} 倍：请检查单位的词头"),
    "binary": ("off by {factor}: powers of 1024 (GiB) against powers of 1000 (GB)",
               "差 {factor} 倍：混淆了 1024 进制（GiB）与 1000 进制（GB）"),
    "percent": ("off by exactly 100: a percentage?", "恰好差 100 倍：是否写成了百分数？"),
    "time_unit": ("off by exactly {factor}: seconds, minutes, hours or days?", "恰好差 {factor} 倍：混淆了秒、分、小时或天？"),
    "sign": ("the sign is wrong", "符号反了"),
    "inverted": ("that is the inverse: the ratio is upside down", "这是倒数：比值写反了"),
    "n_less_1": ("{name} stands where it should be {name} - 1, or the reverse",
                 "应是 {name} - 1 的地方写成了 {name}，或者相反"),
    "total": ("that is for all {name} together; per chip is asked", "这是 {name} 块芯片的总量；题目问的是每块芯片"),
    "per_chip": ("that is for one of {name}; the total is asked", "这是 {name} 块芯片中一块的量；题目问的是总量"),
    "factor_missing": ("too small by exactly {factor}", "恰好漏了因子 {factor}"),
    "factor_extra": ("too large by exactly {factor}", "恰好多了因子 {factor}"),
    "factor_wrong": ("off by the factor {factor}", "差了因子 {factor}"),
    "missing": ("{words} is missing", "漏了{words}"),
    "extra": ("{term} is too much", "多了 {term}"),
    "coefficient": ("the term {term} has the factor {given}, and that is wrong", "{term} 这一项的系数 {given} 不对"),
    "added": ("the parts were added; they overlap, so that the larger one counts", "把各部分相加了；它们可以重叠，应取较大者"),
    "larger": ("the larger one was taken; without overlap they add", "取了较大者；不重叠时应相加"),
    "smaller": ("the smaller one was taken; the larger one binds", "取了较小者；起决定作用的是较大者"),
    "one_side": ("that is only {term}; the other part is missing", "这只是 {term}；漏了另一部分"),
    "one_by_2": ("one part is off by exactly 2; it should be {term}", "其中一部分恰好差 2 倍，应为 {term}"),
    "direction": ("the bound is right, its direction is not", "界限的数值正确，但方向反了"),
    "other_letter": ("the condition is on {right}, not on {given}", "条件是关于 {right} 的，而不是 {given}"),
    "other_part": ("that is the answer to another part, {part}", "这是另一问（{part}）的答案"),
    "unit": ("the number is right, its unit is not: {right} is asked", "数值正确，但单位不对：应为 {right}"),
    "unit_only": ("{right} is asked, not {given}", "题目要求的单位是 {right}，而不是 {given}"),
}  # fmt: skip


def message(key: str, lang: str, **values: object) -> str:
    """A text of the checker."""
    return TEXTS[key][LANGUAGES.index(lang)].format(**values)


def language(wanted: str | None = None) -> str:
    """The language to speak: the wanted one, else that of the locale.

    Raises:
        CostirError: for a language that there is not.
    """
    if wanted:
        if wanted not in LANGUAGES:
            raise CostirError(f"no language {wanted[:20]!r}", f"there are {', '.join(LANGUAGES)}")
        return wanted
    names = (os.environ.get("LC_ALL"), os.environ.get("LC_MESSAGES"), os.environ.get("LANG"), locale.getlocale()[0])
    first = next((n for n in names if n), "")
    return "zh" if first.lower().startswith("zh") else "en"
