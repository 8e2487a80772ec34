"""Which values the hyper-parameters of methods may have, by their names, so that no method has to check them itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from .errors import BadValue
from .settings import Range, fits, kind_in_words

ONE_OR_MORE, NOT_NEGATIVE, POSITIVE, A_SHARE = Range(least=1), Range(least=0), Range(above=0), Range(least=0, most=1)

# A name means the same in every method that has it; where two methods use it for different things, the wider range.
NAMES = {
    ONE_OR_MORE: """answers attempts batch best branch candidates continuations cycle divisor drafts easiest epochs
        every facts groups hardest iteration k keep limit max_states min_target minibatches most ngram
        noise pairs partial places plenty pool prefix proposals questions references rollouts rounds samples
        searches seeds sft_groups size solutions stages stride sync target_step tasks tested tokens turns
        verdicts votes wanted_pages wanted_searches width window""",
    NOT_NEGATIVE: """accuracy adverts ahead alpha alpha_end answerable behaviour beta beta1 beta2 beta_first beta_min
        bonus brevity budget buffer cache calibration capacity checks clip clip_high compensation critic_beta
        delay density distractors drop early eta examples explore far floor forecasts form format
        format_penalty format_reward gain gate_from grounding guesses high high_max hypotheses kappa key
        language least least_range length level length_penalty lenience levels likelihood longer low low_max
        meta mix_from mu neg_weight offset outcome penalty plateau power process redundancy reflection
        repetition replayed resets retrieval retrieved revisions scale search_reward smooth solved split
        std_share step steps structure success summarise target target_kl tau temperature tolerance top tried unformed
        usage verifications verify_from""",
    POSITIVE: "base cutoff far_high far_low lr rho weight_cap",
    Range(above=0, most=1): "top_p",
    A_SHARE: """bar broken cap checker_noise decay depth dispersion drop_share ema_decay error fixed form_true gamma
        gamma_repetition gate_high gate_low highest irrelevant label_smoothing lam least_probability
        length_weight mu_valley noise_end noise_start prune rate roll_in saturation share static
        teacher_noise unlabelled unread weight""",
}
RANGES: Mapping[str, Range] = {name: found for found, names in NAMES.items() for name in names.split()}
ENDINGS: Mapping[str, Range] = {
    "_lr": POSITIVE,
    **dict.fromkeys(("_epochs", "_minibatches", "_queue"), ONE_OR_MORE),
    **dict.fromkeys(("_steps", "_warmup"), NOT_NEGATIVE),
}


def range_of(name: str) -> Range:
    """The range of a hyper-parameter by its name; without bounds for a name that has no meaning of its own here."""
    if name in RANGES:
        return RANGES[name]
    return next((found for ending, found in ENDINGS.items() if name.endswith(ending)), Range())


def check_hyper_parameters(owner: str, parameters: Mapping[str, inspect.Parameter], values: Mapping[str, Any]) -> None:
    """Raise BadValue for the first value that is not of its parameter's kind, not finite or out of range.

    owner: what it is a hyper-parameter of, as the message names it. Parameters without an annotation take anything.
    """
    for name, value in values.items():
        kind = parameters[name].annotation
        if kind is inspect.Parameter.empty or kind is Any:
            continue
        if not fits(value, kind):
            raise BadValue(f"{owner}: {name} must be {kind_in_words(kind)}, not {value!r}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and (objection := range_of(name).objection(value)):
            raise BadValue(f"{owner}: {name} must be {objection}, not {value}")
