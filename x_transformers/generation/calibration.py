"""Thresholds for tokens that leave early, found on data: by a grid search, or with a guarantee by tests.

The model is an `EarlyExitWrapper`, which imports this.  Angelopoulos et al. 2021, arXiv:2110.01052
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.checks import check_ids
from x_transformers.flags import is_number, warn_once
from x_transformers.flags.checks import Maybe
from x_transformers.generation.engine import eval_modules
from x_transformers.generation.sampling import require
from x_transformers.training.layer_losses import Targets


@torch.no_grad()
def grid_search_exit(
    model: Any,
    loader: Iterable[Any],
    thresholds: Sequence[float],
    *,
    exit: str = 'confidence',
    tolerance: float = 0.01,
) -> float:
    """The threshold with the smallest mean depth that costs no more than `tolerance` of the accuracy of all blocks.

    model        in eval mode while this runs
    loader       batches of ids (b n), or dicts of the keywords of `forward`, `x` among them
    thresholds   0 .. 1    those that are tried
    tolerance    by how much fewer next tokens may be said right, as a part of all
    returns      one of `thresholds`, of several with the same depth the largest; 1, by which none leaves, if none
                 will do
    raises       ValueError for thresholds out of range, or without data
    """
    require(exit in ('confidence', 'classifier'), 'exit', exit, "'confidence' or 'classifier'")
    require(
        isinstance(thresholds, (list, tuple)) and len(thresholds) > 0, 'thresholds', thresholds, 'a list of numbers'
    )
    for threshold in thresholds:
        require(is_number(threshold) and 0 <= threshold <= 1, 'thresholds', thresholds, 'numbers from 0 to 1')
    require(is_number(tolerance) and tolerance >= 0, 'tolerance', tolerance, 'a number of at least 0')
    right, depths, full, tokens = [0.0] * len(thresholds), [0.0] * len(thresholds), 0.0, 0
    with eval_modules(list(model.modules())):
        for batch in loader:
            inputs = dict(batch) if isinstance(batch, dict) else {'x': batch}
            own = check_ids(inputs.pop('x'), 'x', 2)
            ids, tokens_read, known = model._split(own, own, inputs.pop('lens', None), inputs)
            targets = Targets(tokens_read, model.ignore_index, known).of()
            token_mask = targets != model.ignore_index
            tokens += int(token_mask.sum())
            full += float((model.net(ids, **inputs).argmax(dim=-1) == targets)[token_mask].sum())
            for at, threshold in enumerate(thresholds):
                log: list[Tensor] = []
                logits = model.net(ids, **model.exit_inputs(exit, threshold, log=log), **inputs)
                right[at] += float((logits.argmax(dim=-1) == targets)[token_mask].sum())
                depths[at] += float(log[0][:, log[0].shape[1] - ids.shape[1] :][token_mask].sum())
    if tokens == 0:
        raise ValueError('`loader` gave no targets: there is nothing to choose by')
    good = [at for at in range(len(thresholds)) if right[at] >= full - tolerance * tokens]
    return thresholds[min(good, key=lambda at: (depths[at], -thresholds[at]))] if good else 1.0


def exit_p_value(risk: float, count: int, delta: float, bound: str = 'hoeffding') -> float:
    """Return how probable a mean loss of at most `risk` is, of `count` losses in 0 .. 1 whose expectation exceeds
    `delta`.

    hoeffding             exp(-2 n max(0, delta - risk)^2)
    hoeffding_bentkus     min(exp(-n KL(risk || delta)), e P(Binomial(n, delta) <= ceil(n risk))),  the tighter one
    """
    require(bound in ('hoeffding', 'hoeffding_bentkus'), 'bound', bound, "'hoeffding' or 'hoeffding_bentkus'")
    if bound == 'hoeffding':
        return math.exp(-2 * count * max(0.0, delta - risk) ** 2)
    least = min(risk, delta)
    parts = [(least, delta), (1 - least, 1 - delta)]
    divergence = sum(p * math.log(p / q) for p, q in parts if p > 0)
    most = math.ceil(round(count * risk, 9))
    terms = (
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(delta) + (count - k) * math.log1p(-delta)
        for k in range(min(most, count) + 1)
    )  # fmt: skip
    return min(math.exp(-count * divergence), math.e * sum(map(math.exp, terms)), 1.0)


def learn_then_test(
    risks: Iterable[float], count: int, *, delta: float, eps: float, bound: str = 'hoeffding'
) -> int | None:
    """Return which of several settings, the safest first, is the last one whose risk is surely at most `delta`.

    They are tested in order, and the first that may be too risky ends the tests, whatever comes after it: then the risk
    of the answer exceeds `delta` with a probability of at most `eps`.

    risks     the mean losses of the settings, over `count` examples; those behind the answer are not asked for
    returns   its place, None if the first one fails
    """
    last = None
    for at, risk in enumerate(risks):
        if exit_p_value(risk, count, delta, bound) > eps:
            break
        last = at
    return last


def token_f1_distance(made: Tensor, wanted: Tensor) -> float:
    """1 - F1 of the tokens of two texts (s), in any order: 0 for the same ones, 1 if they share none."""
    ours, theirs = Counter(made.tolist()), Counter(wanted.tolist())
    shared = sum((ours & theirs).values())
    total = sum(ours.values()) + sum(theirs.values())
    return 1 - 2 * shared / total if total else 0.0


def calibrate_exit(
    model: Any,
    prompts: Sequence[Tensor] | Tensor,
    seq_len: int,
    *,
    consistency: str = 'textual',
    references: Maybe[Sequence[Tensor]] = None,
    delta: float = 0.1,
    eps: float = 0.05,
    lambdas: Sequence[float] | None = None,
    distance_fn: Callable[[Tensor, Tensor], float] | None = None,
    exit_decay_tau: float | None = None,
    bound: str = 'hoeffding',
    **options: Any,
) -> float:
    """The smallest threshold of `exit='confidence'` whose texts are surely close to those of all blocks.

        textual    E[D(early, full)] <= delta                                        with a probability of 1 - eps
        risk       E[max(0, D(early, reference) - D(full, reference))] <= delta      over the draw of the prompts

    prompts        one for each example, drawn like those that the threshold is for
    seq_len        tokens that are generated, greedily
    references     for 'risk': what is right (s), for each prompt
    lambdas        thresholds in falling order, the safest first; 1, .95, ... .05 if None
    distance_fn    D(tokens (s), tokens (s)) in 0 .. 1, of what stands before the end; 1 - F1 of tokens if None
    bound          'hoeffding' or 'hoeffding_bentkus', see `exit_p_value`
    options        further keywords of `generate`, such as `eos_token`
    returns        one of `lambdas`, or 1, by which none leaves, if the first one fails
    raises         ValueError for arguments out of range or distances outside 0 .. 1; warns of fewer than 30 prompts

    Thresholds that are not tried any more cost nothing.  Schuster et al. 2022, arXiv:2207.07061
    """
    lambdas = [round(1 - 0.05 * step, 2) for step in range(20)] if lambdas is None else list(lambdas)
    _check_calibration(lambdas, delta, eps, consistency, references, prompts)
    distance = token_f1_distance if distance_fn is None else distance_fn

    def texts(**exits: Any) -> list[Tensor]:
        made = model.generate(prompts, seq_len, temperature=0.0, return_finish_reasons=True, **exits, **options)
        ends = options.get('eos_token')
        return [_strip_padding(row, ends, reason) for row, reason in zip(made.tokens, made.finish_reasons, strict=True)]

    def measured(made: Tensor, wanted: Tensor) -> float:
        value = float(distance(made, wanted))
        require(0 <= value <= 1, 'distance_fn', value, 'a function that gives distances from 0 to 1')
        return value

    full = texts()
    if consistency == 'risk':
        known = [measured(made, wanted) for made, wanted in zip(full, references, strict=True)]

    def risk(threshold: float) -> float:
        early = texts(exit='confidence', exit_threshold=threshold, exit_decay_tau=exit_decay_tau)
        if consistency == 'textual':
            losses = [measured(made, wanted) for made, wanted in zip(early, full, strict=True)]
        else:
            losses = [
                max(0.0, measured(made, wanted) - before)
                for made, wanted, before in zip(early, references, known, strict=True)
            ]
        return sum(losses) / len(losses)

    at = learn_then_test(map(risk, lambdas), len(prompts), delta=delta, eps=eps, bound=bound)
    return 1.0 if at is None else lambdas[at]


def _strip_padding(row: Tensor, eos_token: Any, reason: str) -> Tensor:
    """A generated row up to its end."""
    if reason != 'eos':
        return row
    ends = torch.as_tensor(eos_token, device=row.device).reshape(-1)
    first = int((row.unsqueeze(-1) == ends).any(dim=-1).byte().argmax())
    return row[: first + 1]


def _check_calibration(
    lambdas: list[float], delta: float, eps: float, consistency: str, references: Any, prompts: Any
) -> None:
    words = 'numbers from 0 to 1 in falling order, one at least'
    falling = all(one > other for one, other in itertools.pairwise(lambdas))
    inside = all(is_number(one) and 0 <= one <= 1 for one in lambdas)
    require(len(lambdas) > 0 and inside and falling, 'lambdas', lambdas, words)
    for name, value in (('delta', delta), ('eps', eps)):
        require(is_number(value) and 0 < value < 1, name, value, 'a number between 0 and 1')
    require(consistency in ('textual', 'risk'), 'consistency', consistency, "'textual' or 'risk'")
    if (references is None) == (consistency == 'risk'):
        raise ValueError("`references` are for `consistency='risk'`, which needs them")
    if not hasattr(prompts, '__len__') or not len(prompts):
        raise ValueError('`prompts` must be one prompt at least')
    if references is not None and len(references) != len(prompts):
        raise ValueError(f'`references` got {len(references)} texts, there are {len(prompts)} prompts')
    if len(prompts) < 30:
        warn_once(f'`prompts` got {len(prompts)}: with fewer than 30, hardly any threshold passes the test')
