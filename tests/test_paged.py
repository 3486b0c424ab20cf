"""Many requests in blocks of one pool: block tables against a list, the tokens of `generate`, and nothing is lost."""

import itertools
import random

import pytest
import torch
from law_cases import CASES, model_of, others_nightly, refused
from oracles import randomised

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, Paged, PagedEngine, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.generation.batching import PoolIsFull
from x_transformers.generation.paged import BlockPool, Table

V, LONGEST = 31, 48


def model(seed=0, around=(), **flags):
    stack = Decoder(**{**dict(dim=16, depth=2, heads=2, attn_dim_head=8), **flags})
    sizes = dict(num_tokens=V, max_seq_len=LONGEST, attn_layers=stack)
    return AutoregressiveWrapper(randomised(TransformerWrapper(**{**sizes, **dict(around)}), seed))


def prompts(*lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, V, (n,), generator=generator) for n in lengths]


# blocks


def rows_of(pool, table):
    return pool.read('rows', table.slots()[None])[0]


def written(pool, table, ids):
    """Tokens `ids` behind those of a table, each with a row of its number."""
    slots = table.reserve(len(ids) - table.length)
    new = torch.tensor(ids[table.length :], dtype=torch.float64)[:, None] * torch.tensor([1.0, -2.0])
    pool.write('rows', torch.tensor(slots), new)
    table.fill(ids)


@pytest.mark.parametrize('size', [1, 3, 16])
def test_blocks_hold_what_lists_hold(size):
    """Five sequences that grow, end and fork at random; in the end all blocks are free."""
    pool, draw, number = BlockPool(80, size), random.Random(0), itertools.count()
    held = [(Table(pool), []) for _ in range(5)]
    for _ in range(400):
        at = draw.randrange(5)
        table, ids = held[at]
        what = draw.random()
        if what < 0.15:
            table.clear()
            held[at] = (Table(pool), [])
        elif what < 0.3:
            other = (at + 1) % 5
            held[other][0].clear()
            held[other] = (table.fork(), list(ids))
        else:
            more = [*ids, *(next(number) for _ in range(draw.randint(1, 6)))]
            try:
                written(pool, table, more)
            except PoolIsFull:
                assert len(pool.free) < table.missing(len(more) - len(ids))
                continue
            held[at] = (table, more)
        for table, ids in held:
            assert table.length == len(ids)
            if ids:
                assert rows_of(pool, table)[:, 0].tolist() == ids
        counts = [sum(block in table.blocks for table, _ in held) for block in range(80)]
        assert counts == pool.holders and sorted(pool.free) == [b for b in range(80) if not counts[b]]
    for table, _ in held:
        table.clear()
    assert pool.used == 0 and not pool.known and not pool.keys


def test_the_first_write_copies_one_block():
    pool = BlockPool(10, 4)
    one = Table(pool)
    written(pool, one, [*range(10)])
    other = one.fork()
    assert pool.used == 3 and other.missing(1) == one.missing(1) == 1
    written(pool, other, [*range(10), 77])
    assert pool.used == 4 and one.blocks[:2] == other.blocks[:2] and one.blocks[2] != other.blocks[2]
    written(pool, one, [*range(10), 55])
    assert pool.used == 4  # nobody else holds its last block any more
    assert rows_of(pool, one)[:, 0].tolist() == [*range(10), 55]
    assert rows_of(pool, other)[:, 0].tolist() == [*range(10), 77]


def test_a_full_pool_changes_nothing():
    pool = BlockPool(3, 4)
    one, two = Table(pool), Table(pool)
    written(pool, one, [*range(10)])
    before = list(one.blocks), list(pool.free)
    for table in (one, two):
        with pytest.raises(PoolIsFull, match='1 blocks were asked for, 0 of 3 are free'):
            table.reserve(3)
    assert (one.blocks, pool.free) == before and two.blocks == []
    one.reserve(2)


def test_equal_beginnings_are_found():
    pool = BlockPool(20, 4)
    one = Table(pool)
    written(pool, one, [*range(11)])
    for ids, wanted in (([*range(11)], 8), ([*range(8)], 8), ([0, 1, 2, 3, 9, 9, 9, 9], 4), ([4, 5, 6, 7], 0)):
        other = Table(pool)
        other.share(ids, len(ids))
        assert other.length == wanted and other.blocks == one.blocks[: wanted // 4]
        other.clear()
    one.clear()
    other = Table(pool)
    other.share([*range(11)], 11)
    assert other.length == 0


# the tokens of `generate`


def alone(made, asked, **options):
    return [made.generate(p, n, temperature=0.0, **options) for p, n in asked]


def check(made, asked, engine, **options):
    numbers = [engine.add(p, n, temperature=0.0, **options) for p, n in asked]
    found = engine.run()
    for number, tokens in zip(numbers, alone(made, asked, **options), strict=True):
        assert torch.equal(found[number].tokens, tokens)
    assert engine.pool.used == 0 and engine.pool.holders == [0] * engine.pool.num_blocks and not engine.busy
    return found


# what has no row for each token, or needs all rows
NOT_IN_BLOCKS = 'has no row for each token|cannot cache|puts tokens in front|reads a context|padded on the left|reads a'


@pytest.mark.parametrize(
    'case',
    others_nightly(c for c in CASES if c.wrapper is TransformerWrapper and c.kind is Decoder),
    ids=str,
)
def test_beside_every_flag(case):
    """Requests of four lengths, three at once, in blocks of two: the tokens of each alone, or a refusal by name."""
    if refused(case) is not None or case.inputs:
        return
    try:
        made = AutoregressiveWrapper(model_of(case))
        asked = [(p % 30, 4 + at) for at, p in enumerate(prompts(3, 7, 1, 5))]
        alone(made, asked[:1])
    except (ConfigError, ValueError, TypeError):
        return  # no model that `generate` could ask for tokens
    try:
        engine = PagedEngine(made, 30, block_size=2, max_batch=3)
    except ConfigError as error:
        assert any(words in str(error) for words in NOT_IN_BLOCKS.split('|'))
        return
    check(made, asked, engine)


FAST = {
    'rotary': dict(rotary_pos_emb=True),
    'a table': {},
    'T5': dict(rel_pos_bias=True),
    'modern': dict(
        rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True, attn_kv_heads=1, attn_qk_rmsnorm=True
    ),
    'side by side': dict(parallel_block=True, rotary_pos_emb=True),
}


@pytest.mark.parametrize('kind', FAST)
def test_a_step_written_out_is_the_step(kind):
    """The same logits by the step, by the net, and by the net with a hook, which counts once other requests join."""
    made, asked = model(around=dict(post_emb_norm=True, emb_scale=2.0), **FAST[kind]), prompts(5, 9, 2)
    engine, seen = PagedEngine(made, 30, 4), {}

    def stepped():
        seen.clear()
        read = engine.read_tokens
        engine.read_tokens = lambda *args: seen.setdefault('logits', read(*args))
        engine.step()
        del engine.read_tokens
        return seen['logits']

    for prompt in asked:
        engine.add(prompt, 20, temperature=0.0)
    engine.step()
    for turn in range(6):
        rows = [torch.tensor(one.ids) for one in engine.running]
        if turn == 3:
            handle = made.net.attn_layers.layers[1][1].register_forward_hook(lambda *_: None)
            engine.add(asked[0], 20, temperature=0.0)
        logits = stepped()
        assert (engine.fast is None) == (turn >= 3)
        for row, found in zip(rows, logits, strict=True):
            assert torch.allclose(found, made.net(row[None])[0, -1], atol=1e-12)
    handle.remove()
    engine.add(asked[0], 20, temperature=0.0)
    engine.step()
    assert engine.fast is not None


def test_weights_that_change_between_steps_count():
    made = model(rotary_pos_emb=True)
    engine = PagedEngine(made, 30, 4)
    for prompt in prompts(5, 9, 2, 4, 7):
        engine.add(prompt, 20, temperature=0.0)
    engine.step(), engine.step()
    rows = [torch.tensor([one.ids]) for one in engine.running]
    before = [int(made.net(row)[0, -1].argmax()) for row in rows]
    with torch.no_grad():
        made.net.to_logits.weight.neg_()
    wanted = [int(made.net(row)[0, -1].argmax()) for row in rows]
    assert list(engine.step().values()) == wanted != before


@pytest.mark.parametrize('blocks', [12, 14, 30])
@pytest.mark.parametrize('batch', [1, 3, 8])
def test_few_blocks(blocks, batch):
    """Where the pool is too small for all, requests give way, are read again, and get the same tokens."""
    made, asked = (
        model(rotary_pos_emb=True),
        list(zip(prompts(20, 3, 11, 7, 1, 16), (20, 12, 5, 30, 9, 20), strict=True)),
    )
    engine = PagedEngine(made, blocks, 4, max_batch=batch)
    ways, give_way = [], engine.give_way

    def watched():
        first = min(one.number for one in engine.running)
        ways.append(give_way())
        assert ways[-1] is engine.waiting[0] and (ways[-1].number > first or not engine.running)
        return ways[-1]

    engine.give_way = watched
    check(made, asked, engine)
    assert bool(ways) == (blocks < 30 and batch > 1)


def test_a_common_beginning_is_read_and_held_once():
    """Eight requests with 64 tokens in common: no more than 64 / B + 8 ceil(tail / B) blocks, and one reading."""
    made = model(around=dict(max_seq_len=128), rotary_pos_emb=True)
    common, tails, most = prompts(64)[0], prompts(*range(1, 9), seed=1), 0
    asked = [(torch.cat((common, tail)), 6) for tail in tails]
    engine = PagedEngine(made, 60, 8)
    lengths = []
    made.net.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    numbers = [engine.add(p, n, temperature=0.0) for p, n in asked]
    while engine.busy:
        engine.step()
        most = max(most, engine.pool.used)
    found = engine.results()
    assert most <= 64 // 8 + sum(-(-(len(tail) + 6) // 8) for tail in tails)
    assert sorted(lengths)[-1] == 65 and sum(n > 8 for n in lengths) == 1
    assert [found[n].shared for n in numbers] == [0] + [64] * 7
    made.net._forward_pre_hooks.clear()
    assert all(torch.equal(found[n].tokens, t) for n, t in zip(numbers, alone(made, asked), strict=True))


def test_a_request_that_is_continued_twice():
    made, (prompt,) = model(rotary_pos_emb=True), prompts(9)
    engine = PagedEngine(made, 30, 4)
    first = engine.add(prompt, 12, temperature=0.0)
    for _ in range(4):
        engine.step()
    used = engine.pool.used
    second = engine.fork(first, temperature=1.0, filter_logits_fn='top_k', generator=torch.Generator().manual_seed(1))
    third = engine.fork(first)
    assert engine.pool.used == used
    found = engine.run()
    wanted = made.generate(prompt, 12, temperature=0.0)
    assert torch.equal(found[first].tokens, wanted) and torch.equal(found[third].tokens, wanted)
    assert torch.equal(found[second].tokens[:4], wanted[:4]) and not torch.equal(found[second].tokens, wanted)
    behind = made.generate(torch.cat((prompt, wanted[:4])), 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(found[second].tokens[4:], behind) and engine.pool.used == 0


def test_a_twin_waits_where_all_places_are_taken():
    made, (prompt,) = model(rotary_pos_emb=True), prompts(9)
    engine = PagedEngine(made, 30, 4, max_batch=1)
    first = engine.add(prompt, 12, temperature=0.0)
    engine.step(), engine.step()
    twin = engine.fork(first)
    assert len(engine.running) == len(engine.waiting) == 1
    found = engine.run()
    wanted = made.generate(prompt, 12, temperature=0.0)
    assert torch.equal(found[first].tokens, wanted) and torch.equal(found[twin].tokens, wanted)


@pytest.mark.parametrize('kind', ['rotary', 'a table'])
def test_steps_in_inference_mode_and_outside(kind):
    made, two = model(**FAST[kind]), prompts(9, 4)
    for inside in (0, 1):
        engine = PagedEngine(made, 30, 4)
        numbers = []
        for step in range(4):
            with torch.inference_mode(step % 2 == inside):
                if step < 2:
                    numbers.append(engine.add(two[step], 8, temperature=0.0))
                engine.step()
        found = engine.run()
        for number, prompt in zip(numbers, two, strict=True):
            assert torch.equal(found[number].tokens, made.generate(prompt, 8, temperature=0.0))


def test_each_chooses_in_its_own_way():
    """Draws, penalties, endings and bans of each request, as if it were alone with its own generator."""
    made, three = model(rotary_pos_emb=True), prompts(6, 2, 9)
    options = [
        dict(temperature=0.8, filter_logits_fn='top_p'),
        dict(temperature=1.5, repetition_penalty=1.3, banned_tokens=[3, 4]),
        dict(temperature=0.0, frequency_penalty=0.7),
    ]
    seeded = [torch.Generator().manual_seed(at) for at in range(3)]
    engine = PagedEngine(made, 40, 4)
    numbers = [engine.add(p, 15, generator=g, **o) for p, g, o in zip(three, seeded, options, strict=True)]
    found = engine.run()
    for at, (number, prompt) in enumerate(zip(numbers, three, strict=True)):
        wanted = made.generate(prompt, 15, generator=torch.Generator().manual_seed(at), **options[at])
        assert torch.equal(found[number].tokens, wanted)
    free = made.generate(three[0], 15, temperature=0.0).tolist()
    number = engine.add(three[0], 15, eos_token=free[6], temperature=0.0)
    other = engine.add(three[0], 15, stop_sequences=[free[3:5], [V - 1] * 5], temperature=0.0)
    found = engine.run()
    first = free.index(free[6]) + 1
    assert found[number].tokens.tolist() == free[:first] and found[number].finish_reason == 'eos'
    across = engine.add(three[0], 4, stop_sequences=[[*three[0][-2:].tolist(), free[0]]], temperature=0.0)
    assert engine.run()[across].tokens.tolist() == free[:4]
    assert found[other].finish_reason == 'stop' and found[other].tokens.tolist() == free[:5]


def test_generate_in_blocks():
    """`generate(kv_storage=...)` gives what it gives without: padded prompts, endings, samples, leading axes."""
    made, three = model(rotary_pos_emb=True), prompts(6, 2, 9)
    storage, greedy = Paged(60, 4), dict(temperature=0.0)
    eos = int(made.generate(three[1], 3, **greedy)[2])
    for asked, options in (
        (three, {}),
        (three, dict(eos_token=eos, return_finish_reasons=True)),
        (torch.stack((three[0], three[0] % 7)), dict(num_samples=3)),
        (three[0].view(1, 1, 6), {}),
        (three[0], dict(seq_len=0)),
    ):
        options = {**dict(seq_len=10), **greedy, **options}
        ours, theirs = (made.generate(asked, **options, **own) for own in (dict(kv_storage=storage), {}))
        if options.get('return_finish_reasons'):
            assert ours.finish_reasons == theirs.finish_reasons
            ours, theirs = ours.tokens, theirs.tokens
        assert torch.equal(ours, theirs)
    drawn = made.generate(three[0].expand(2, -1), 8, kv_storage=storage, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 8) and not torch.equal(*drawn)


# nothing is lost


def rolled(made, steps, seed, blocks=26, size=4, batch=6):
    """Requests are added, forked and cancelled at random; each that ends has the tokens of the net alone."""
    engine, draw, asked = PagedEngine(made, blocks, size, max_batch=batch, max_waiting=8), random.Random(seed), {}
    common = prompts(12, seed=3)[0]
    ended = 0
    for _ in range(steps):
        what = draw.random()
        numbers = [one.number for one in (*engine.running, *engine.waiting)]
        if what < 0.4:
            own = torch.tensor([draw.randrange(V) for _ in range(draw.randint(1, 16))])
            prompt = torch.cat((common, own)) if draw.random() < 0.4 else own
            n = draw.randint(1, 20)
            try:
                asked[engine.add(prompt, n, temperature=0.0)] = prompt, n
            except PoolIsFull:
                assert len(engine.waiting) >= 8  # those that gave way wait too
        elif what < 0.47 and numbers:
            engine.cancel(draw.choice(numbers))
        elif what < 0.5 and engine.running:
            number = draw.choice(engine.running).number
            asked[engine.fork(number)] = asked[number]
        elif what < 0.52:
            with pytest.raises(KeyError):
                engine.cancel(10**6 + draw.randint(0, 5))
        engine.step()
        if draw.random() < 0.1:
            ended += settle(made, engine, asked)
    while engine.busy:
        engine.step()
    ended += settle(made, engine, asked)
    assert not asked and engine.pool.used == 0 and not engine.pool.known and not engine.pool.keys
    return ended


def settle(made, engine, asked):
    """All that has ended is what a single reading of it says."""
    found = engine.results()
    for number, one in found.items():
        prompt, n = asked.pop(number)
        assert one.finish_reason in ('length', 'cancelled') and (one.finish_reason == 'cancelled') == (
            len(one.tokens) < n
        )
        if len(one.tokens):
            whole = torch.cat((prompt, one.tokens))
            with torch.no_grad():
                said = made.net(whole[None, :-1])[0, len(prompt) - 1 :].argmax(dim=-1)
            assert torch.equal(said, one.tokens)
    held = {block for one in engine.running for block in one.table.blocks}
    assert len(held) == engine.pool.used
    return len(found)


@pytest.mark.costly
def test_a_storm_of_requests():
    assert rolled(model(rotary_pos_emb=True), 300, 0) > 50
    assert rolled(model(alibi_pos_bias=True), 150, 1) > 20


@pytest.mark.nightly
def test_ten_thousand_steps():
    assert rolled(model(rotary_pos_emb=True), 10_000, 2) > 2000


def test_one_that_fails_lets_the_others_go_on():
    """A processor that raises ends its request; a module that raises leaves all as they were before the step."""
    made, three = model(rotary_pos_emb=True), prompts(6, 2, 9)
    engine = PagedEngine(made, 40, 4)

    def broken(ids, logits):
        if ids.shape[1] > 8:
            raise ZeroDivisionError('no more')
        return logits

    numbers = [
        engine.add(p, 10, temperature=0.0, **o)
        for p, o in zip(three, ({}, dict(logits_processor=broken), {}), strict=True)
    ]
    engine.step(), engine.step()

    def refuses(*_):
        raise RuntimeError('not now')

    handle = made.net.attn_layers.layers[2][1].register_forward_hook(refuses)
    before = [list(one.ids) for one in engine.running]
    engine.add(three[0], 3, temperature=0.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match='not now'):
            engine.step()
    handle.remove()
    assert [list(one.ids) for one in engine.running] == before and len(engine.waiting) == 1
    found = engine.run()
    assert found[numbers[1]].finish_reason == 'error' and isinstance(found[numbers[1]].error, ZeroDivisionError)
    assert len(found[numbers[1]].tokens) == 7 and engine.pool.used == 0
    for at in (0, 2):
        assert torch.equal(found[numbers[at]].tokens, made.generate(three[at], 10, temperature=0.0))


def test_in_training_mode_and_beside_gradients():
    made = model(rotary_pos_emb=True, attn_dropout=0.5, ff_dropout=0.5).train()
    engine = PagedEngine(made, 30)
    number = engine.add(prompts(5)[0], 6, temperature=0.0)
    found = engine.run()[number].tokens
    assert made.training and made.net.training
    assert torch.equal(found, made.generate(prompts(5)[0], 6, temperature=0.0))


def test_waste():
    engine = PagedEngine(model(), 30, 8)
    assert engine.waste == 0
    engine.add(prompts(9)[0], 20, temperature=0.0)
    engine.step()
    assert engine.waste == 1 - 9 / 16
    engine.step()
    assert engine.waste == 1 - 10 / 16
    assert engine.pool.bytes == (30 * 8 + 1) * 4 * 16 * 8  # keys and values of two layers, in doubles


ENGINE = lambda **options: PagedEngine(model(), **{**dict(num_blocks=5, block_size=4), **options})  # noqa: E731


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: ENGINE(num_blocks=0), r'`num_blocks` must be.*got 0'),
        (lambda: ENGINE(block_size=1.5), r'`block_size` must .*got 1.5'),
        (lambda: ENGINE(max_batch=0), r'`max_batch` must .*got 0'),
        (lambda: ENGINE(max_waiting=-1), r'`max_waiting` must .*got -1'),
        (lambda: PagedEngine(model().net, 5), '`wrapper` must be an AutoregressiveWrapper, got TransformerWrapper'),
        (lambda: PagedEngine(model(around=dict(num_memory_tokens=2)), 5), 'puts tokens in front of the sequence'),
        (lambda: PagedEngine(model(attn_kernel='elu'), 5), 'cannot stand in blocks: the running state'),
        (lambda: PagedEngine(model(cross_attend=True), 5), 'reads a context beside its tokens'),
        (lambda: PagedEngine(AutoregressiveWrapper(TransformerWrapper(
            num_tokens=5, max_seq_len=9, attn_layers=Encoder(dim=8, depth=1, heads=1))), 5), 'cannot cache|must'),
        (lambda: ENGINE().add([], 3), r'`prompt` must .*got shape'),
        (lambda: ENGINE().add([[1]], 3), r'`prompt` must be ids \(n\), got shape \(1, 1\)'),
        (lambda: ENGINE().add([1, V], 3), f'`prompt` must be .*got token ids from 1 to {V}'),
        (lambda: ENGINE().add([0.5], 3), '`prompt` must '),
        (lambda: ENGINE().add([1], 0), '`seq_len` must be an integer of at least 1, got 0'),
        (lambda: ENGINE().add([1], 21), '`seq_len` got 21 behind .* more than the pool can ever hold, 20'),
        (lambda: ENGINE(num_blocks=99).add([1], 48), '`seq_len` got 48 .* more than the `max_seq_len` of the net, 48'),
        (lambda: ENGINE().add([1], 3, temprature=0.0), '`temprature` is no keyword .*, did you mean `temperature`'),
        (lambda: ENGINE().add([1], 3, temperature=-1), r'`temperature` must .*got -1'),
        (lambda: ENGINE().add([1], 3, eos_token=V), '`eos_token` must '),
        (lambda: ENGINE().cancel(0), 'there is no request 0 that waits or runs'),
        (lambda: ENGINE().fork(7), 'there is no request 7'),
        (lambda: model().generate(prompts(3), 4, kv_storage=5), r'`kv_storage` must be `Paged.*got 5'),
        (lambda: model().generate(prompts(3), 4, kv_storage=Paged(9), return_log_probs=True), '`return_log'),
        (lambda: model().generate(prompts(3), 4, kv_storage=Paged(9), cache_kv=False), '`cache_kv=False` cannot be'),
        (lambda: model().generate(prompts(3), 4, kv_storage=Paged(0)), r'`num_blocks` must .*got 0'),
    ],
)  # fmt: skip
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError, KeyError), match=words):
        call()


def test_who_cannot_wait_is_told():
    engine = ENGINE(max_batch=1, max_waiting=1)
    first = engine.add([1, 2], 3)
    with pytest.raises(PoolIsFull, match='1 requests wait already, which is `max_waiting`'):
        engine.add([1], 3)
    with pytest.raises(KeyError, match='only those that run can be continued twice'):
        engine.fork(first)
    engine.step()
    engine.add([1], 3)
    assert len(engine.run()) == 2


# the model is cast between requests


@pytest.mark.parametrize('first, second', [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float64)])
def test_an_idle_engine_follows_a_cast(first, second):
    """Its tokens are those of an engine that was made afterwards; nothing is shared with what was cached before."""
    wrapper, (one, other) = model(rotary_pos_emb=True), prompts(5, 8)
    engine = PagedEngine(wrapper.to(first), 32, block_size=4)
    for to in (first, second, first):
        wrapper.to(to)
        numbers = [engine.add(prompt, 6, temperature=0.0) for prompt in (one, other, one)]
        found = engine.run()
        fresh = PagedEngine(wrapper, 32, block_size=4)
        wanted = [fresh.add(prompt, 6, temperature=0.0) for prompt in (one, other, one)]
        done = fresh.run()
        assert [found[at].tokens.tolist() for at in numbers] == [done[at].tokens.tolist() for at in wanted]
        assert engine.precision == fresh.precision


def test_an_idle_engine_follows_autocast():
    wrapper, (prompt,) = model().float(), prompts(6)
    engine = PagedEngine(wrapper, 32, block_size=4)
    for on in (False, True, False):
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=on):
            number = engine.add(prompt, 6, temperature=0.0)
            found = engine.run()[number].tokens
            assert torch.equal(found, wrapper.generate(prompt[None], 6, temperature=0.0)[0])


@pytest.mark.parametrize('way', ['cast', 'autocast'])
def test_a_cast_while_requests_run_is_refused(way):
    """In words; back as it was, they go on as if nothing had been."""
    wrapper, (prompt,) = model().float(), prompts(6)
    wanted = wrapper.generate(prompt[None], 5, temperature=0.0)[0]
    engine = PagedEngine(wrapper, 32, block_size=4)
    number = engine.add(prompt, 5, temperature=0.0)
    engine.step()
    weights = {name: t.clone() for name, t in wrapper.state_dict().items()}
    if way == 'cast':
        wrapper.bfloat16()
        with pytest.raises(ValueError, match='cast or moved while 1 requests run'):
            engine.step()
        wrapper.float().load_state_dict(weights)
    else:
        with torch.autocast('cpu', dtype=torch.bfloat16), pytest.raises(ValueError, match='cast or moved while 1'):
            engine.step()
    assert torch.equal(engine.run()[number].tokens, wanted)


@pytest.mark.parametrize('prompt', [torch.zeros(0), torch.zeros(2, 3).long(), [1.5], 'text', [V], [-1]])
def test_what_is_no_prompt(prompt):
    with pytest.raises((ValueError, TypeError), match='prompt'):
        PagedEngine(model(), 8, block_size=4).add(prompt, 2)
