"""What `costir demo` says, in English and Chinese; `LANGUAGES` names the order."""

from __future__ import annotations

from costir.exercises.records import LANGUAGES

TEXTS: dict[str, tuple[str, str]] = {
    "title": ("Experiments on this machine", "本机实验"),
    # above
    "chip": ("chip", "芯片"),
    "threads": ("threads", "线程"),
    "calibrated": ("calibrated", "校准"),
    "ratio_is": ("ratio", "比值"),
    "ratio_words": ("measured over predicted; the best of several rounds counts", "实测除以预测；每项测几轮，取最短的一轮"),
    # tables
    "with": ("{title}, {sizes}", "{title}，{sizes}"),
    "matmul": ("matmul: [n, n] times [n, n] in fp32", "matmul：fp32 的 [n, n] 乘 [n, n]"),
    "bandwidth": ("bandwidth: x.mul_(c) over fp32 elements", "bandwidth：对 fp32 元素做 x.mul_(c)"),
    "fusion": (
        "fusion: operators one after the other / one operator, and the ratio of their times",
        "fusion：逐个算子 / 单个算子，以及两者时间之比",
    ),
    "step": ("step: a training step of the lesson's GPT", "step：课程 GPT 的一个训练步"),
    "width": ("width: a training step of the lesson's GPT", "width：课程 GPT 的一个训练步"),
    "predicted": ("predicted", "预测"),
    "measured": ("measured", "实测"),
    "ratio": ("ratio", "比值"),
    "of_peak": ("of peak", "占峰值"),
    "elements": ("elements", "元素数"),
    "array": ("array", "数组"),
    "fits": ("fits in", "放得进"),
    "memory": ("memory", "内存"),
    "envelope": ("at most", "上限"),
    "case": ("computes", "计算"),
    "passes": ("passes", "读写遍数"),
    "by_passes": ("by passes", "按遍数"),
    "times": ("times", "时间"),
    "special": ("special", "特殊函数"),
    "fresh": ("fresh", "新页"),
    "operators": ("operators", "算子数"),
    "matmul_flops": ("matmul FLOPs", "矩阵乘 FLOPs"),
    "overhead": ("overhead", "调用开销"),
    # what to see
    "matmul_1": (
        "a product of n x n matrices is {flops} FLOPs at {intensity} FLOP/byte: a small one is over before its call is paid "
        "for, a large one uses each number often enough to keep the multipliers busy",
        "n x n 矩阵相乘需要 {flops} 次浮点运算，算术强度为 {intensity} FLOP/字节：矩阵小时，时间主要花在调用上；"
        "矩阵大时，每个数被反复使用，乘法单元才忙得起来",
    ),
    "matmul_2": (
        "the prediction reaches half of the calibrated peak, {peak}, at n = {n}; look where the measured share does",
        "按预测，n = {n} 时达到校准峰值 {peak} 的一半；看实测在哪一行达到一半",
    ),
    "matmul_2_none": (
        "the prediction reaches half of the calibrated peak, {peak}, at none of these sizes; look how far the measured "
        "share gets",
        "按预测，这些大小都达不到校准峰值 {peak} 的一半；看实测能达到多少",
    ),
    "bandwidth_1": (
        "each element is read once and written once, 8 bytes for one multiplication, so the time is set by memory and not by "
        "arithmetic",
        "每个元素读一次、写一次，8 个字节才做一次乘法，所以时间由内存决定，而不是由运算决定",
    ),
    "bandwidth_2": (
        "look how the bandwidth rises while more elements share one call, and falls when the array outgrows a cache: {levels}",
        "看带宽怎样变化：元素越多，分摊到每个元素的调用开销越小，带宽上升；数组一旦超出某级缓存，带宽就下降（{levels}）",
    ),
    "fusion_1": (
        "an operator by itself reads its operands from memory and writes its result back; one operator for all reads only what "
        "comes in and writes only what goes out, so without other costs the times would be as the passes",
        "逐个执行时，每个算子都要从内存读操作数、再把结果写回；合成一个算子后，只读最初的输入、只写最后的结果。"
        "如果没有别的开销，时间之比就等于读写遍数之比",
    ),
    "fusion_2": (
        "where they are not, the last columns say why: special functions (exp, tanh, cos) are bound by compute however few the "
        "passes, so that cos(cos(x)) in one kernel would still compute two; and results of 32 MiB or more go to fresh pages, "
        "which the system has to give first",
        "两者不同时，看最后两列：exp、tanh、cos 等特殊函数受计算限制，读写遍数再少也要算，"
        "所以 cos(cos(x)) 即使合成一个内核，也仍要算两次 cos；而 32 MiB 及以上的结果要写进新页，系统得先分配这些内存页",
    ),
    "step_1": (
        "a step is {operators} operators whatever the batch, and each has to be called before it computes anything: {first} of "
        "the predicted time at B = {small}, {last} at B = {large}",
        "无论批多大，一步都有 {operators} 个算子，每个算子在计算之前都有调用开销：B = {small} 时占预测时间的 {first}，"
        "B = {large} 时占 {last}",
    ),
    "step_2": (
        "overhead has ended where the time has doubled, {predicted} by the prediction and {measured} as measured; from there "
        "on a larger batch takes longer and uses the machine little better",
        "时间翻倍之处，调用开销就不再是主要部分：按预测是 {predicted}，实测是 {measured}；"
        "此后批越大，时间越长，机器的利用率却提高不多",
    ),
    "width_1": (
        "twice the width is up to four times the FLOPs in the same {operators} operators, so that the share of overhead falls "
        "from {first} of the predicted time at D = {small} to {last} at D = {large}",
        "宽度加倍，FLOPs 最多变成四倍，而算子仍是 {operators} 个，所以调用开销在预测时间中的占比从 D = {small} 时的 {first} "
        "降到 D = {large} 时的 {last}",
    ),
    "width_2": (
        "the time has doubled {predicted} by the prediction and {measured} as measured; wider products come closer to the "
        "matmul peak, {share} of it at D = {large} by the prediction",
        "时间翻倍之处，按预测是 {predicted}，实测是 {measured}；矩阵越宽，越接近矩阵乘峰值，按预测 D = {large} 时达到 {share}",
    ),
    "between": ("{least} to {most}", "{least} 到 {most}"),
    "at": ("at {name} = {value}", "{name} = {value}"),
    "nowhere": ("nowhere here", "不在此范围内"),
    # verdict and notes
    "verdict": ("verdict", "评判"),
    "verdict_words": (
        "{name}: the prediction is {median} off in the median; {close} of {count} rows are within 25 %",
        "{name}：预测误差的中位数为 {median}，{count} 行中有 {close} 行在 25 % 以内",
    ),
    "note": ("note", "注意"),
    "cpu": (
        "calibrated on {then}, but this is {now}: no verdict; run costir calibrate here",
        "校准时的处理器是 {then}，现在是 {now}，不作评判；请在本机运行 costir calibrate",
    ),
    "torch": (
        "calibrated with torch {then}, but this is {now}: no verdict; run costir calibrate again",
        "校准时的 torch 是 {then}，现在是 {now}，不作评判；请重新运行 costir calibrate",
    ),
    "slower": (
        "{names}: the machine is {share} slower than when it was calibrated; it is busy, or it is another one: no verdict",
        "{names}：本机比校准时慢 {share}，可能正忙，也可能不是同一台机器，不作评判",
    ),
    "faster": (
        "{names}: the machine is {share} faster than when it was calibrated; it was busy then: no verdict, run "
        "costir calibrate again",
        "{names}：本机比校准时快 {share}，说明校准时机器正忙，不作评判；请重新运行 costir calibrate",
    ),
    "shared": (
        "{names}: other processes took the core for {share} of the time: no verdict",
        "{names}：有 {share} 的时间核心被其他进程占用，不作评判",
    ),
}


def text(key: str, lang: str, **values: object) -> str:
    """A text in a language."""
    return TEXTS[key][LANGUAGES.index(lang)].format(**values)
