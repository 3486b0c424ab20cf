"""Links that several types share."""

from __future__ import annotations

from collections.abc import Callable

from x_transformers.pretrained.changes import JOIN, Q_COLUMNS, R_LAST, STACK, STACK_GATED, Change, Q, R, apart, chain
from x_transformers.pretrained.rows import Fields, Link, link, links

Links = tuple[Link, ...]
A, F = 'L.{2i}', 'L.{2i+1}'  # the attention and the feedforward of a block
B = 'model.layers.{i}'


def attention(q: str, k: str, v: str, out: str, turn: bool = True) -> Links:
    """Four projections."""
    return links(
        link(f'{q}.*', f'{A}.1.to_q.*', *((Q, R) if turn else (Q,))),
        link(f'{k}.*', f'{A}.1.to_k.*', *((R,) if turn else ())),
        link(f'{v}.*', f'{A}.1.to_v.*'),
        output(out),
    )


def output(out: str) -> Links:
    return links(link(f'{out}.weight', f'{A}.1.to_out.weight', Q_COLUMNS), link(f'{out}.bias', f'{A}.1.to_out.bias'))


def fused(name: str, *changes: Change, when: Callable[[Fields], bool] | None = None) -> Links:
    """One projection for queries, keys and values."""
    ours = f'{A}.1.to_q.* {A}.1.to_k.* {A}.1.to_v.*'
    return link(f'{name}.*', ours, *changes, when=when)


TURNED = apart(chain(Q, R), R, None)  # queries, keys, values


def gated(up: str, gate: str, down: str) -> Links:
    return links(link(f'{up}.* {gate}.*', f'{F}.1.ff.0.proj.*', JOIN), link(f'{down}.*', f'{F}.1.ff.2.*'))


def plain(up: str, down: str) -> Links:
    return links(link(f'{up}.*', f'{F}.1.ff.0.0.*'), link(f'{down}.*', f'{F}.1.ff.2.*'))


def norms(before_attention: str, before_feedforward: str | None) -> Links:
    after = () if before_feedforward is None else link(before_feedforward, f'{F}.0.0.norm')
    return links(link(before_attention, f'{A}.0.0.norm'), after)


def ends(table: str, norm: str, head: str) -> Links:
    return links(
        link(f'{table}.weight', 'token_emb.emb.weight'),
        link(norm, 'attn_layers.final_norm.norm'),
        link(f'{head}.*', 'to_logits.*'),
    )


LLAMA_ATTENTION = attention(
    f'{B}.self_attn.q_proj', f'{B}.self_attn.k_proj', f'{B}.self_attn.v_proj', f'{B}.self_attn.o_proj'
)
LLAMA_GATED = gated(*(f'{B}.mlp.{name}_proj' for name in ('up', 'gate', 'down')))
LLAMA_NORMS = norms(f'{B}.input_layernorm', f'{B}.post_attention_layernorm')
LLAMA_ENDS = ends('model.embed_tokens', 'model.norm', 'lm_head')
SANDWICH = links(
    link(f'{B}.input_layernorm', f'{A}.0.0.norm'),
    link(f'{B}.post_attention_layernorm', f'{A}.0.1.norm'),
    link(f'{B}.pre_feedforward_layernorm', f'{F}.0.0.norm'),
    link(f'{B}.post_feedforward_layernorm', f'{F}.0.1.norm'),
)


def qk_norms(theirs: str, q: tuple[Change, ...], k: tuple[Change, ...], ours: str = 'norm') -> Links:
    """Norms of queries and of keys: what follows `q_` and `k_` in names, and the changes of each."""
    return links(
        *(
            link(f'{B}.self_attn.{side}_{theirs}', f'{A}.1.{side}_{ours}.norm', *changes)
            for side, changes in (('q', q), ('k', k))
        )
    )


HEAD_NORMS = qk_norms('norm.weight', (R_LAST,), (R_LAST,))


def named_experts(
    router: str, experts: str, up: str = 'up_proj', gate: str = 'gate_proj', down: str = 'down_proj'
) -> Links:
    """A router, and experts with one tensor for each projection of each."""
    each = f'{experts}.{{x}}'
    return links(
        link(f'{router}.weight', f'{F}.1.moe.router.weight'),
        link(f'{each}.{up}.weight {each}.{gate}.weight', f'{F}.1.moe.up_gate.weight', STACK_GATED),
        link(f'{each}.{down}.weight', f'{F}.1.moe.down.weight', STACK),
    )
