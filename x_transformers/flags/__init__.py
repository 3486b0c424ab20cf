"""Flags: every keyword of the library is declared once, in the feature that it switches.

What belongs here: `flag`, `Feature` (one paper), `Features` (the features of one module, resolved to a tuple per
stage) and `Configurable` (a module built from flags). Signatures, `help()`, checks, refusals, suggestions, the config
as JSON and `explain()` are all derived from the declarations. No tensors.

    python -m x_transformers.flags             the table of all flags
    python -m x_transformers.flags rotary      what one flag, or every flag like it, does
"""

# ruff: noqa: F401  names that all of the package takes from here

from x_transformers.flags.checks import (
    Check,
    ConfigError,
    a_callable,
    a_mapping,
    an_instance,
    at_least,
    boolean,
    count,
    each,
    integer,
    is_int,
    is_number,
    log_once,
    naming,
    none,
    not_negative,
    number,
    of_keys,
    one_of,
    positive,
    probability,
    renamings,
    shown,
    size,
    warn_once,
)
from x_transformers.flags.configurable import (
    Config,
    Configurable,
    DerivedConfig,
    DerivedSignature,
    accepted,
    building_twins,
    declared_arguments,
    remembering,
    signature_of,
    type_hints,
    unbound,
)
from x_transformers.flags.declared import REQUIRED, Feature, Features, Flag, PerLayer, flag
from x_transformers.flags.resolved import (
    catalogue_for,
    did_you_mean,
    extend,
    flags_of,
    is_set,
    known_features,
    left_out_or_meant,
    refuse_clashes,
    resolve,
    switch_of,
    warn_of_idle,
)
from x_transformers.flags.states import Noted, OfContext, PerToken, Remembered, Ring, Running
