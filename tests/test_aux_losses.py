"""Losses that a user's features add: every wrapper with a loss adds their sum, once."""

import threading

import pytest
import torch
from building import stacks
from torch import nn
from torch.utils.checkpoint import checkpoint

from x_transformers import (
    DPO,
    Attention,
    AttentionLayers,
    AutoregressiveWrapper,
    BeliefStateWrapper,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    EarlyExitWrapper,
    Encoder,
    MultiInputAutoregressiveWrapper,
    MultiInputTransformerWrapper,
    NextLatentWrapper,
    NonAutoregressiveWrapper,
    TransformerWrapper,
    ViTransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
)
from x_transformers.continuous_autoencoder import ContinuousTransformerAutoencoder
from x_transformers.core import aux_losses as room
from x_transformers.features import (
    ATTENTION,
    MODEL,
    STACK,
    AttentionFeature,
    FeedForwardFeature,
    ModelFeature,
    StackFeature,
)
from x_transformers.free_transformer import FreeTransformer
from x_transformers.full_bandwidth import FullBandwidth
from x_transformers.gpt_lejepa import LatentAutoregressive
from x_transformers.gpt_vae import GPTVAE
from x_transformers.recirculation import Recirculation
from x_transformers.training import AuxLosses, NamedLosses
from x_transformers.up_wrapper import UniversalPretrainWrapper
from x_transformers.xm_latent_decoder import XMLatentDecoder

DIM, VOCAB, LENGTH = 16, 11, 8
SIZES = dict(dim=DIM, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True, verbose=False)


class InAttention(AttentionFeature):
    """Adds (sum w)^2, in every attention."""

    def setup(self, owner):
        self.price = nn.Parameter(torch.linspace(0.1, 0.4, owner.dim))

    def layer_output(self, out, call):
        call.add_loss('price', self.price.sum().square())
        return out


class InStack(StackFeature):
    """Adds (sum w)^2, once per run of the stack."""

    def setup(self, owner):
        self.price = nn.Parameter(torch.linspace(0.2, 0.3, owner.dim))

    def stack_input(self, x, call):
        call.add_loss('price', self.price.sum().square())
        return x


class InModel(ModelFeature):
    """Adds (sum w)^2, once per call of the model."""

    def setup(self, owner):
        self.price = nn.Parameter(torch.linspace(0.2, 0.3, owner.dim))

    def embedded(self, x, call):
        call.add_loss('model', self.price.sum().square())
        return x


FEATURES = (*ATTENTION, InAttention, *STACK, InStack, *MODEL, InModel)
IN_STACKS = FEATURES[: -1 - len(MODEL)]


stack_of = stacks(features=FEATURES, **SIZES)


def net_of(kind=Decoder, stack=None, **options):
    given = dict(num_tokens=VOCAB, max_seq_len=LENGTH, attn_layers=stack_of(kind, **(stack or {})), features=FEATURES)
    return TransformerWrapper(**{**given, **options})


def ids_of(*shape):
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(1))


def vectors():
    return torch.randn(2, LENGTH, DIM, generator=torch.Generator().manual_seed(1))


def on_ids(wrapper):
    return wrapper, lambda model: model(ids_of(2, LENGTH))


def of_streams():
    sizes = dict(num_tokens=dict(a=VOCAB, b=VOCAB), max_seq_len=LENGTH)
    net = MultiInputTransformerWrapper(**sizes, attn_layers=stack_of(), features=FEATURES)
    streams = dict(a=ids_of(2, LENGTH), b=ids_of(2, LENGTH).flip(1))
    return MultiInputAutoregressiveWrapper(net), lambda model: model(streams)


def of_numbers():
    sizes = dict(num_tokens=VOCAB, max_seq_len=LENGTH, numerical_token_id=3)
    net = XValTransformerWrapper(**sizes, attn_layers=stack_of(), features=FEATURES)
    return XValAutoregressiveWrapper(net), lambda model: model(ids_of(2, LENGTH), torch.ones(2, LENGTH))


def of_vectors(**inputs):
    net = ContinuousTransformerWrapper(max_seq_len=LENGTH, attn_layers=stack_of(), features=FEATURES)
    return ContinuousAutoregressiveWrapper(net), lambda model: model(vectors(), **inputs)


def autoencoder(**inputs):
    sizes = dict(dim=DIM, enc_depth=1, dec_depth=1, max_seq_len=LENGTH, heads=2, attn_dim_head=8)
    model = ContinuousTransformerAutoencoder(**sizes, features=FEATURES)
    return model, lambda model: model(vectors(), **inputs).mean()


def of_passes(count):
    net = net_of(stack=dict(depth_scale_residual=True), tie_embedding=True, post_emb_norm=True)
    return on_ids(FullBandwidth(net, temporal_parallel_passes=count))


def of_preferences():
    prompt = torch.arange(LENGTH).expand(2, -1) < 3
    one, other = ids_of(2, LENGTH), ids_of(2, LENGTH).flip(1)
    return DPO(net_of()), lambda model: model(one, other, prompt_mask=prompt)


def encoded(**options):
    sizes = dict(num_tokens=VOCAB, max_seq_len=LENGTH, depth=1, heads=2, attn_dim_head=8, features=FEATURES)
    sides = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
    return XTransformer(dim=DIM, **sides, **options), lambda model: model(ids_of(2, 5), ids_of(2, LENGTH))


def free():
    sizes = dict(num_tokens=VOCAB, dim=DIM, dec_head_depth=1, dec_tail_depth=1, heads=2, attn_dim_head=8, latent_bits=3)
    model = FreeTransformer(**sizes, pad_id=0, features=IN_STACKS, verbose=False)
    return model, lambda model: model(ids_of(2, LENGTH))


def variational():
    sizes = dict(num_tokens=VOCAB, dim=DIM, depth=1, enc_depth=1, max_seq_len=LENGTH, heads=2, attn_dim_head=8)
    return GPTVAE(**sizes, features=IN_STACKS, verbose=False), lambda model: model(ids_of(2, LENGTH))


def hidden_tokens(part, **options):
    model = NonAutoregressiveWrapper(net_of(Encoder), mask_id=0, **options)
    return model, lambda model: model(ids_of(2, LENGTH), **part).loss


def looped(**options):
    net = net_of(stack=dict(pre_and_post_norm=True), looped=True, max_looped_steps=3)
    return on_ids(AutoregressiveWrapper(net, **options))


def pretraining():
    return UniversalPretrainWrapper(net_of(), seq_len=LENGTH, batch_size=2, num_reset=2, seed_length=2), lambda m: m()


language = AutoregressiveWrapper

# how often the loss of a feature counts that sits in an attention, a stack, a model
WRAPPERS = {
    'language': (lambda: on_ids(language(net_of())), 1, 1, 1),
    'language, two layers': (lambda: on_ids(language(net_of(stack=dict(depth=2)))), 1, 1, 1),
    'language, z-loss': (lambda: on_ids(language(net_of(), add_attn_z_loss=True)), 1, 1, 1),
    'language, smoothed': (lambda: on_ids(language(net_of(), label_smoothing=0.1)), 1, 1, 1),
    'language, cross-attention': (lambda: (language(net_of(stack=dict(cross_attend=True))), lambda model: model(
        ids_of(2, LENGTH), context=vectors())), 1, 1, 1),
    'early exits': (lambda: on_ids(EarlyExitWrapper(
        net_of(stack=dict(depth=2)), exit_classifier='geometric')), 1, 1, 1),
    'early exits, drawn': (lambda: on_ids(EarlyExitWrapper(net_of(stack=dict(depth=2)), exit_train='mixed',
                                                           mixed_samples=2)), 1, 1, 1),
    'weights tied': (lambda: on_ids(language(net_of(stack=dict(weight_tie_layers=True, depth=3)))), 3, 1, 1),
    'recomputed': (lambda: on_ids(language(net_of(stack=dict(checkpoint_layers=True, depth=2)))), 1, 1, 1),
    'segments recomputed': (lambda: on_ids(language(net_of(stack=dict(checkpoint_layers=3, depth=2)))), 1, 1, 1),
    'looped': (looped, 3, 3, 1),
    'recycled': (lambda: (language(net_of(recycling=True)), lambda model: model(ids_of(2, LENGTH), recycle_steps=1)),
                 1, 1, 1),
    'segments': (lambda: on_ids(XLAutoregressiveWrapper(net_of(max_seq_len=3, max_mem_len=4))), 1, 1, 1),
    'segments that learn': (lambda: on_ids(XLAutoregressiveWrapper(
        net_of(max_seq_len=3, max_mem_len=4), tbptt_steps=2, ttt_module_paths=('attn_layers.layers.1.1',))), 1, 1, 1),
    'hidden tokens': (lambda: hidden_tokens({}), 1, 1, 1),
    'hidden tokens, guessed before': (lambda: hidden_tokens({}, self_cond=True, self_cond_train_prob=1.0), 1, 1, 1),
    'hidden tokens and critic': (lambda: hidden_tokens({}, self_token_critic=True), 2, 2, 2),
    'critic alone': (lambda: hidden_tokens(dict(only_train_critic=True), self_token_critic=True), 1, 1, 1),
    'vectors': (of_vectors, 1, 1, 1),
    'vectors, some': (lambda: of_vectors(lens=torch.tensor([3, 8])), 1, 1, 1),
    'vectors, rolled out': (lambda: of_vectors(rollout_steps=3), 1, 1, 1),
    'autoencoder': (autoencoder, 1, 1, 1),
    'autoencoder, rows': (lambda: autoencoder(return_unreduced_loss=True), 1, 1, 1),
    'numbers': (of_numbers, 1, 1, 1),
    'streams': (of_streams, 1, 1, 1),
    'beliefs': (lambda: (BeliefStateWrapper(net_of(max_seq_len=9)), lambda model: model(ids_of(2, LENGTH))), 2, 2, 2),
    'next latent': (lambda: on_ids(NextLatentWrapper(net_of(), dim=DIM)), 1, 1, 1),
    'latents': (lambda: on_ids(LatentAutoregressive(net_of(), dim=DIM)), 1, 1, 1),
    'preferences': (of_preferences, 1, 1, 1),
    'encoded': (encoded, 1, 1, 1),
    'free': (free, 1, 1, 1),
    'variational': (variational, 1, 1, 1),
    'passes': (lambda: of_passes(2), 2, 2, 2),
    'three passes': (lambda: of_passes(3), 2, 2, 2),
    'candidates': (lambda: on_ids(XMLatentDecoder(net_of(), num_latents=2)), 1, 1, 1),
    'candidates in parts': (lambda: on_ids(XMLatentDecoder(net_of(), num_latents=2, max_batch_size=3)), 1, 1, 1),
    'second readings': (lambda: on_ids(language(Recirculation(net_of(stack=dict(depth=2)), 1, 0))), 2, 2, 2),
    'pretraining': (pretraining, 1, 1, 1),
}  # fmt: skip


def seeded(build):
    torch.manual_seed(0)
    return build()


def prices_of(model):
    """The parameters of features that add losses, with the level of each."""
    for module in model.modules():
        if 'price' in module._parameters and module.price.requires_grad:
            kinds = (Attention, AttentionLayers, nn.Module)
            yield module.price, next(at for at, kind in enumerate(kinds) if isinstance(module, kind))


def run(model, of):
    """The loss, and the gradients of all parameters."""
    torch.manual_seed(2)
    model.zero_grad(set_to_none=True)
    loss = of(model)
    loss.backward()
    return loss.detach(), {p: p.grad for p in model.parameters()}


@pytest.fixture(autouse=True)
def _in_doubles():
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize('case', WRAPPERS)
def test_every_wrapper_adds_the_losses_of_features_once(case, monkeypatch):
    """And in evaluation not at all."""
    build, *times = WRAPPERS[case]
    model, of = seeded(build)
    with NamedLosses() as named:
        loss, grads = run(model, of)
    evaluated = run(model.eval(), of)[0]
    monkeypatch.setattr(room.AddsLosses, 'add_loss', lambda *_: None)
    if case != 'segments that learn':  # those read again what they learn from
        assert evaluated == run(model, of)[0]
    plain, bare = run(model.train(), of)
    prices = {price: times[level] for price, level in prices_of(model)}
    assert len(prices) >= 2
    torch.testing.assert_close(loss - plain, sum(n * price.detach().sum() ** 2 for price, n in prices.items()))
    torch.testing.assert_close(loss - plain, sum(named.by_name.values()))
    of_model = sum(times[2] * price.detach().sum() ** 2 for price, level in prices_of(model) if level == 2)
    torch.testing.assert_close(named.by_name.get('model', 0 * loss), of_model + 0 * loss)
    for p, grad in grads.items():
        if p in prices:
            torch.testing.assert_close(grad, torch.full_like(p, 2 * prices[p] * p.sum().item()))
        elif grad is not None:
            torch.testing.assert_close(grad, bare[p])


def test_passes_without_a_gradient_count_too():
    model = language(net_of(recycling=True))
    price = {level: price for price, level in prices_of(model)}
    ids = ids_of(2, LENGTH)
    loss, grads = run(model, lambda model: model(ids, recycle_steps=3))
    found = model.net(ids, recycle_steps=3, return_intermediates=True)[1].aux_losses
    expected = 3 * (price[0].sum() ** 2 + price[1].sum() ** 2)
    torch.testing.assert_close(found['price'], expected)
    torch.testing.assert_close(grads[price[0]], torch.full_like(price[0], 2 * price[0].sum().item()))
    torch.testing.assert_close(loss - next_token(model.net(ids, recycle_steps=3), ids), sum(found.values()).detach())


def next_token(logits, ids):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).detach()


class Balance(AttentionFeature):
    """A loss of what a call reads."""

    def setup(self, owner):
        self.worth = nn.Parameter(torch.ones(()))

    def qkv_heads(self, qkv, call):
        call.add_loss('balance', 0.1 * self.worth * call.x.square().mean())
        return qkv


@pytest.mark.parametrize('stack', [{}, dict(checkpoint_layers=True), dict(checkpoint_layers=2)], ids=str)
def test_gradients_through_the_stream(stack):
    net = net_of(stack=dict(depth=2, features=(*ATTENTION, Balance), **stack), features=None)
    model, ids = language(net), ids_of(2, LENGTH)
    read = []
    for layer in (net.attn_layers.layers[0], net.attn_layers.layers[2]):
        layer[1].register_forward_pre_hook(lambda _, args: read.append(args[0]))
    (loss, (logits, trace)) = model(ids, return_outputs=True)
    by_hand = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    balance = 0.1 * sum(x.square().mean() for x in read)
    torch.testing.assert_close(trace.aux_losses, {'balance': balance})
    torch.testing.assert_close(loss, by_hand + balance)
    named = dict(net.named_parameters())
    grads = dict(zip(named, torch.autograd.grad(loss, named.values(), retain_graph=True), strict=True))
    assert trace.aux_losses['balance'].item() == pytest.approx(balance.item())  # not counted by the backward pass
    worths = [name for name in named if name.endswith('worth')]
    torch.testing.assert_close([grads.pop(name) for name in worths], [0.1 * x.square().mean() for x in read[:2]])
    if not stack:  # what hooks saw is of the graph of the pass
        expected = torch.autograd.grad(by_hand + balance, [named[name] for name in grads])
        torch.testing.assert_close(list(grads.values()), list(expected))


class InFeedForward(FeedForwardFeature):
    """Adds (sum w)^2, in every feedforward."""

    def setup(self, owner):
        self.price = nn.Parameter(torch.linspace(0.1, 0.4, owner.dim))

    def layer_output(self, out, call):
        call.add_loss('of feedforwards', self.price.sum().square())
        return out


@pytest.mark.parametrize('stack', [{}, dict(checkpoint_layers=True), dict(reversible=True)], ids=str)
def test_feedforwards_add_losses_too(stack):
    net = net_of(stack=dict(depth=2, features=(InFeedForward,), **stack), features=None, max_mem_len=4, max_seq_len=3)
    ids, prices = ids_of(2, LENGTH), [p for name, p in net.named_parameters() if name.endswith('price')]
    wanted = sum(price.detach().sum() ** 2 for price in prices)
    for model in (XLAutoregressiveWrapper(net), language(net)):
        ids = ids if isinstance(model, XLAutoregressiveWrapper) else ids[:, :4]
        model.train()
        loss, grads = run(model, lambda model, ids=ids: model(ids))
        torch.testing.assert_close(loss - model.eval()(ids).detach(), wanted)
        for price in prices:
            torch.testing.assert_close(grads[price], torch.full_like(price, 2 * price.sum().item()))
    _, (_, trace) = model.train()(ids, return_outputs=True)
    torch.testing.assert_close(trace.aux_losses, {'of feedforwards': wanted}, check_dtype=False)


def test_outputs_name_each_loss():
    model, ids = language(net_of()), ids_of(2, LENGTH)
    loss, (_, trace) = model(ids, return_outputs=True)
    sums = {level: price.sum() ** 2 for price, level in prices_of(model)}
    torch.testing.assert_close(trace.aux_losses, {'model': sums[2], 'price': sums[0] + sums[1]})
    torch.testing.assert_close(loss.detach() - next_token(model.net(ids), ids), sum(sums.values()).detach())
    assert model.eval()(ids, return_outputs=True)[1][1].aux_losses == {}
    model, _ = of_streams()
    streams = dict(a=ids_of(2, LENGTH), b=ids_of(2, LENGTH))
    assert set(model(streams, return_outputs=True)[1].intermediates.aux_losses) == {'model', 'price'}
    _, trace = net_of().attn_layers(vectors(), return_hiddens=True)
    assert set(trace.aux_losses) == {'price'}


def test_a_training_loop_of_ones_own():
    net = ViTransformerWrapper(image_size=8, patch_size=4, channels=1, num_classes=3, attn_layers=stack_of(Encoder))
    with AuxLosses() as aux:
        out = net(torch.randn(2, 1, 8, 8))
    prices = [price.sum() ** 2 for price, _ in prices_of(net)]
    torch.testing.assert_close(aux.by_name, {'price': sum(prices)})
    torch.testing.assert_close(aux.added_to(out.sum(), 0.5), out.sum() + 0.5 * sum(prices))


class OfScores(AttentionFeature):
    """A loss of the scores."""

    row_wise = False

    def scores(self, sim, call):
        call.add_loss('scores', sim.square().mean())
        return sim


def test_maps_that_are_computed_to_be_looked_at_add_nothing():
    net = net_of(stack=dict(features=(*ATTENTION, OfScores)), features=None)
    ids = ids_of(2, LENGTH)
    with AuxLosses() as aux:
        trace = net(ids, return_intermediates=True)[1]
        first = trace.attn_intermediates[0].pre_softmax_attn
    expected = trace.attn_intermediates[0].qk_similarities.square().mean()
    torch.testing.assert_close(aux.by_name, {'scores': expected})
    with_z, z_loss = language(net, add_attn_z_loss=True)(ids), net(ids, return_attn_z_loss=True)[1].attn_z_loss
    torch.testing.assert_close(with_z, language(net)(ids) + z_loss)
    assert first.isfinite().all()


def test_a_loss_of_a_part_is_refused(monkeypatch):
    class ByRows(OfScores):
        row_wise = True

    class ByToken(ModelFeature):
        by_token = True

        def logits(self, logits, call):
            call.add_loss('logits', logits.square().mean())
            return logits

    monkeypatch.setattr('x_transformers.kernels.operators.is_large', lambda *_: True)
    net = net_of(stack=dict(features=(*ATTENTION, ByRows)), features=None)
    message = 'the loss `{}` was added from a part of the rows: a feature with a loss at this stage must be neither'
    with pytest.raises(ValueError, match=message.format('scores')):
        net(ids_of(2, LENGTH))
    net = net_of(stack=dict(features=None), features=(*MODEL, ByToken))
    with pytest.raises(ValueError, match=message.format('logits')):
        language(net)(ids_of(2, LENGTH))


@pytest.mark.parametrize(
    ('loss', 'error', 'message'),
    [
        (('a', 1.0), TypeError, 'the loss `a` must be a floating point tensor, got 1.0'),
        (('a', torch.tensor(1)), TypeError, r'the loss `a` must be a floating point tensor, got torch.int64'),
        (('a', torch.ones(2)), ValueError, r'the loss `a` must be a scalar, got a tensor of shape \(2,\)'),
        ((1, torch.ones(())), TypeError, '`name`, the name of the loss, must be a text, got 1'),
    ],
)
def test_what_is_no_loss(loss, error, message):
    class Wrong(AttentionFeature):
        def post_attention(self, out, call):
            call.add_loss(*loss)
            return out

    with pytest.raises(error, match=message):
        stack_of(features=(*ATTENTION, Wrong))(vectors())
    assert not room.gathering.open


def test_threads_gather_for_themselves():
    net, found = net_of(), {}
    sums = {level: price.sum().item() ** 2 for price, level in prices_of(net)}

    def gather(name):
        with AuxLosses() as aux:
            for _ in range(3):
                net(ids_of(2, LENGTH))
        found[name] = sum(aux.by_name.values()).item()

    threads = [threading.Thread(target=gather, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: pytest.approx(3 * sum(sums.values())) for name in range(4)}


def test_a_checkpoint_of_the_users_own_counts_once():
    net, ids = net_of(), ids_of(2, LENGTH)
    sums = {level: price.sum() ** 2 for price, level in prices_of(net)}
    with AuxLosses() as aux:
        out = checkpoint(net, ids, use_reentrant=False)
        aux.added_to(out.mean()).backward()  # runs the net again, inside
    torch.testing.assert_close(sum(aux.by_name.values()), sum(sums.values()))
    for price, _ in prices_of(net):
        torch.testing.assert_close(price.grad, torch.full_like(price, 2 * price.sum().item()))


@pytest.mark.slow
@pytest.mark.parametrize('whole', [True, False])
def test_one_compiled_graph(whole):
    model, ids = language(net_of()), ids_of(2, LENGTH)
    expected, grads = run(model, lambda model: model(ids))
    torch._dynamo.reset()
    if whole:
        compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
    else:
        model.net.compile(backend='aot_eager', fullgraph=True)
        compiled = model
    for _ in range(2):
        loss, found = run(model, lambda _: compiled(ids))
        torch.testing.assert_close(loss, expected)
        for p, grad in grads.items():
            torch.testing.assert_close(found[p], grad)


class OfIds(ModelFeature):
    """A loss that differs between the parts of a sequence."""

    def embedded(self, x, call):
        call.add_loss('ids', call.like_tokens.to(x.dtype).mean())
        return x


def test_segments_count_by_their_targets(monkeypatch):
    sizes = dict(num_tokens=VOCAB, max_seq_len=4, attn_layers=Decoder(**SIZES), features=(*MODEL, OfIds))
    model, ids = XLAutoregressiveWrapper(TransformerWrapper(**sizes, max_mem_len=4)), ids_of(2, 9)
    ids[0, 6:] = model.ignore_index  # three targets fewer in the second of two segments
    with NamedLosses() as named:
        loss = model(ids)
    parts = [part.masked_fill(part < 0, 0).double().mean() for part in ids[:, :-1].split(4, dim=1)]
    torch.testing.assert_close(named.by_name, {'ids': (8 * parts[0] + 5 * parts[1]) / 13})
    monkeypatch.setattr(room.AddsLosses, 'add_loss', lambda *_: None)
    torch.testing.assert_close(loss.detach() - model(ids).detach(), named.by_name['ids'])
