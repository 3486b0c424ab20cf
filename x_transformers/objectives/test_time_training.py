"""Test-time training: the parameters of each sequence are updated after every segment.

Modules with parameters per row, the inner losses, and the inner step. The segments are those of
`xl_autoregressive_wrapper.py`.  Tandon et al. 2025, arXiv:2512.23675
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from x_transformers.cache import LayerIntermediates
from x_transformers.core.modes import to_float
from x_transformers.flags import ConfigError, Configurable, format_value, none as nothing, one_of, size
from x_transformers.keywords import TTTMetaLearningTargetKLLossKeywords, Unpack
from x_transformers.x_transformers import Attention, AttentionLayers, Encoder

__all__ = [
    'LowRankLinear',
    'TTTMetaLearningTargetKLLoss',
    'TTTModuleWrapper',
    'TTTNextLatentPredictionLoss',
    'TestTimeTraining',
    'newtonschulz5',
]

MUON = (3.4445, -4.7750, 2.0315)  # of the quintic iteration


# modules are shared between threads, and so are the parameters of rows while they learn
LEARNING = threading.RLock()

# modules


class TTTModuleWrapper(nn.Module):
    """Wrapper of a module whose parameters may differ between the sequences of a batch.

    `init(b)` gives every row its own copy, `batch_params`, by name and with a leading axis b; `reset` takes them away.
    Tensors that come in have the batch as their first axis, or 1 there; so have those that go out.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.batch_params: dict[str, Tensor] = {}

    def init(self, batch: int) -> None:
        self.take({name: p.expand(batch, *p.shape) for name, p in self.module.named_parameters()})

    def take(self, params: dict[str, Tensor]) -> None:
        """Replace the parameters. They can be trained, whether or not a graph leads to them."""
        joined = torch.is_grad_enabled()  # without, a view of a parameter still says that it requires gradients
        self.batch_params = {
            name: p if joined and p.requires_grad else p.detach().requires_grad_() for name, p in params.items()
        }

    def detach(self) -> None:
        self.take({name: p.detach() for name, p in self.batch_params.items()})

    def reset(self) -> None:
        self.batch_params = {}

    @staticmethod
    def reset_all(module: nn.Module) -> None:
        """Call `reset` for all wrappers inside of `module`."""
        for wrapper in module.modules():
            if isinstance(wrapper, TTTModuleWrapper):
                wrapper.reset()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.batch_params:
            return self.module(*args, **kwargs)
        batch = next(iter(self.batch_params.values())).shape[0]
        leaves, form = tree_flatten((args, kwargs))
        tensors = [t for t in leaves if torch.is_tensor(t)]
        if any(t.ndim == 0 or t.shape[0] not in (1, batch) for t in tensors):
            shapes = ', '.join(str(tuple(t.shape)) for t in tensors)
            raise ValueError(
                f'a {type(self.module).__name__} that learns at test time got tensors of shape {shapes}, '
                f'their first axis must be the batch, {batch}'
            )

        def one_row(params: dict[str, Tensor], rows: list[Tensor]) -> Any:
            tensors = iter(rows)
            one = [next(tensors).unsqueeze(0) if torch.is_tensor(leaf) else leaf for leaf in leaves]
            args, kwargs = tree_unflatten(one, form)
            out = functional_call(self.module, params, args, kwargs)
            return tree_map_only(Tensor, lambda t: t.squeeze(0), out) if rows else out

        rows = [t.expand(batch, *t.shape[1:]) for t in tensors]
        return torch.vmap(one_row, randomness='different')(self.batch_params, rows)


class LowRankLinear(nn.Module):
    """Linear layer whose weight is a product of rank r, in place of another one:  (..., i) -> (..., o)

    y = x (A B)^T + bias        A o r, at random;  B r i, zero at first;  the bias is copied
    """

    def __init__(self, module: nn.Linear, low_rank_dim: int) -> None:
        super().__init__()
        if not isinstance(module, nn.Linear):
            raise ConfigError(f'a low rank is for linear layers, got {type(module).__name__}')
        dim_out, dim_in = module.weight.shape
        if not 1 <= low_rank_dim < min(dim_out, dim_in):
            raise ConfigError(
                f'`low_rank_dim` must be from 1 to {min(dim_out, dim_in) - 1}, '
                f'below both widths of the weight, {dim_out} x {dim_in}, got {low_rank_dim}'
            )
        self.weight_a = nn.Parameter(torch.randn_like(module.weight[:, :1].expand(-1, low_rank_dim)))
        self.weight_b = nn.Parameter(torch.zeros_like(module.weight[:low_rank_dim]))
        self.bias = None if module.bias is None else nn.Parameter(module.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_a @ self.weight_b, self.bias)


# losses


class TTTNextLatentPredictionLoss(Configurable):
    """Loss of predicting each hidden state from the previous one:  (b, n, d) -> (b, n).

        loss_i = mean_d distance(MLP(LayerNorm(h_i)), stopgrad(h_{i+1}))

    The order is cyclic: the last state predicts the first. The loss is zero if the next state is masked.
    """

    def __init__(
        self,
        *,
        dim: Annotated[int, 'width of the hidden states', size],
        hidden_dim: Annotated[int | None, 'inner width, `dim` if None', size | nothing] = None,
        num_layers: Annotated[int, 'number of linear layers', size] = 3,
        loss_type: Annotated[str, 'distance of predicted and actual states', one_of('smooth_l1', 'mse')] = 'smooth_l1',
    ) -> None:
        super().__init__()
        widths = [dim, *[hidden_dim or dim] * (num_layers - 1), dim]
        layers: list[nn.Module] = [nn.LayerNorm(dim)]
        for number in range(num_layers):
            layers += [nn.Linear(widths[number], widths[number + 1]), nn.GELU()]
        self.predictor = nn.Sequential(*layers[:-1])
        self.distance = F.smooth_l1_loss if loss_type == 'smooth_l1' else F.mse_loss

    def forward(self, intermediates: LayerIntermediates, mask: Tensor | None = None) -> Tensor:
        hidden = intermediates.last_layer_hiddens
        target = hidden.detach().roll(-1, dims=1)
        loss = self.distance(self.predictor(hidden), target, reduction='none').mean(dim=-1)
        return loss if mask is None else loss.masked_fill(~mask.roll(-1, dims=1), 0.0)


class TTTMetaLearningTargetKLLoss(Configurable):
    """KL divergence of the prediction of each state from that of an encoder of all states:  (b, n, d) -> (b, n).

    KL(softmax(W h) || softmax(V Encoder(h)))       over classes that are learned by the outer loss
    """

    def __init__(
        self,
        *,
        dim: Annotated[int, 'width of the hidden states', size],
        num_classes: Annotated[int, 'number of classes', size],
        depth: Annotated[int, 'number of layers of the encoder', size] = 1,
        heads: Annotated[int, 'number of attention heads', size] = 4,
        dim_head: Annotated[int, 'width of the latents', size] = 64,
        **kwargs: Unpack[TTTMetaLearningTargetKLLossKeywords],
    ) -> None:
        super().__init__()
        sizes: dict[str, Any] = dict(dim=dim, depth=depth, heads=heads, attn_dim_head=dim_head)
        self.encoder = Encoder(**sizes, **kwargs)
        self.to_prediction = nn.Linear(dim, num_classes)
        self.to_meta_prediction = nn.Linear(dim, num_classes)

    @classmethod
    def accepted(cls) -> dict[str, Any]:
        return {**Encoder.accepted(), **cls.arguments()}

    def forward(self, intermediates: LayerIntermediates, mask: Tensor | None = None) -> Tensor:
        hidden = intermediates.last_layer_hiddens
        own = to_float(self.to_prediction(hidden)).log_softmax(dim=-1)
        target = to_float(self.to_meta_prediction(self.encoder(hidden, mask=mask))).log_softmax(dim=-1)
        return (own.exp() * (own - target)).sum(dim=-1)


# the step


def newtonschulz5(
    t: Tensor, steps: int = 5, eps: float = 1e-7, coefs: tuple[float, float, float] = MUON
) -> tuple[Tensor, bool]:  # fmt: skip
    """Move the singular values of the matrices of a batch (b, ..., i, j) near to 1, by a quintic iteration, and return
    True; return tensors with fewer axes unchanged, and False.

    X = T / |T|;  X <- a X + (b A + c A^2) X,  A = X X^T       Jordan et al. 2024, kellerjordan.github.io/posts/muon
    """
    if t.ndim <= 2:
        return t, False
    a, b, c = coefs
    tall = t.shape[-2] > t.shape[-1]
    x = t.mT if tall else t
    exact = to_float(x)
    x = (exact / exact.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)).to(x.dtype)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x), True


def row_means(losses: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over real tokens of losses (b, n). Losses of whole sequences (b,) are returned unchanged."""
    if losses.shape == mask.shape[:1]:
        return losses
    if losses.shape != mask.shape:
        raise ValueError(
            f'the inner loss must have shape {tuple(mask.shape)} or ({len(mask)},), got {tuple(losses.shape)}'
        )
    return losses.masked_fill(~mask, 0.0).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


@dataclass(frozen=True)
class InnerStep:
    """Inner update theta <- theta - lr g - lr wd theta. With Muon, matrices take orthogonalized gradients and
    `muon_lr`.
    """

    lr: float
    wd: float
    muon_steps: int = 0
    muon_lr: float = 0.0

    def __call__(self, param: Tensor, grad: Tensor) -> Tensor:
        grad, by_muon = newtonschulz5(grad, self.muon_steps) if self.muon_steps else (grad, False)
        lr = self.muon_lr if by_muon else self.lr
        return param - lr * grad - lr * self.wd * param


def get_root(path: Any, roots: Sequence[nn.Module]) -> Any:
    """Return the first of `roots` that has a module at a dotted path."""
    for root in roots:
        with suppress(AttributeError):
            if isinstance(path, str) and path and root.get_submodule(path) is not None:
                return root
    return None


def find(path: Any, roots: Sequence[nn.Module], name: str) -> Any:
    """Return the module at a dotted path, if it can learn at test time."""
    root = get_root(path, roots)
    if root is None:
        raise ConfigError(f'`{name}` got {path!r}, there is no such module in {type(roots[0]).__name__}')
    module = root.get_submodule(path)
    if isinstance(module, (Attention, AttentionLayers, nn.ModuleList, nn.ModuleDict)):
        raise ConfigError(
            f'`{name}` got {path!r}, a {type(module).__name__}: it must lead to a module from tensors to tensors, '
            'such as a feedforward or the `to_v` of an attention'
        )
    if next(module.parameters(), None) is None:
        raise ConfigError(f'`{name}` got {path!r}, a {type(module).__name__} without parameters')
    return module


def put(path: str, roots: Sequence[nn.Module], module: nn.Module) -> None:
    parent, _, last = path.rpartition('.')
    setattr(get_root(path, roots).get_submodule(parent), last, module)


class TestTimeTraining:
    """Inner loop of test-time training: the modules that learn, their gradients, and their update.

    roots      modules in which paths are looked up, in this order
    paths      module paths; of a pair, the second learns from the gradient of the first
    low_rank   (path, rank): linear layers that are replaced by such of a low rank, and learn
    """

    __test__ = False  # for pytest, which would take it for a test

    def __init__(
        self, roots: Sequence[nn.Module], paths: Sequence[Any], low_rank: Sequence[tuple[str, int]], step: InnerStep
    ) -> None:
        for path, rank in low_rank:
            put(path, roots, LowRankLinear(find(path, roots, 'ttt_low_rank_paths'), rank))
        pairs = [path if isinstance(path, (tuple, list)) else (path, path) for path in paths]
        known = {target for _, target in pairs}
        pairs += [(path, path) for path, _ in low_rank if path not in known]
        targets = [target for _, target in pairs]
        if repeated := [target for target in dict.fromkeys(targets) if targets.count(target) > 1]:
            raise ConfigError(f'`ttt_module_paths` got {repeated[0]!r} as target of two gradients')
        modules = {path: find(path, roots, 'ttt_module_paths') for pair in pairs for path in pair}
        for outer, inner in itertools.permutations(modules, 2):
            if modules[inner] in set(modules[outer].modules()):
                raise ConfigError(f'`ttt_module_paths` got {outer!r} and {inner!r}, of which one is part of the other')
        for source, target in pairs:
            kinds = [{n: tuple(p.shape) for n, p in modules[path].named_parameters()} for path in (source, target)]
            if kinds[0] != kinds[1]:
                raise ConfigError(
                    f'`ttt_module_paths` got the pair {(source, target)!r}, whose parameters differ: '
                    f'{format_value(kinds)}'
                )
        self.wrappers = {path: TTTModuleWrapper(module) for path, module in modules.items()}
        for path, wrapper in self.wrappers.items():
            put(path, roots, wrapper)
        self.pairs, self.step = pairs, step

    @contextmanager
    def rows(self, batch: int) -> Iterator[None]:
        """Context in which every sequence has its own parameters, initialized from the model. Other threads wait."""
        with LEARNING:
            try:
                for wrapper in self.wrappers.values():
                    wrapper.init(batch)
                yield
            finally:
                for wrapper in self.wrappers.values():
                    wrapper.reset()

    def detach(self) -> None:
        for wrapper in self.wrappers.values():
            wrapper.detach()

    def update(self, loss: Tensor, *, create_graph: bool, keep: bool) -> None:
        """Take one step on the loss, a sum over sequences. `keep` retains its graph for another backward pass."""
        sources = {source: self.wrappers[source].batch_params for source, _ in self.pairs}
        wanted = [p for params in sources.values() for p in params.values()]
        if not loss.requires_grad:
            raise ValueError('the inner loss does not depend on what is to learn at test time')
        found = iter(
            torch.autograd.grad(
                loss, wanted, create_graph=create_graph, retain_graph=keep or create_graph, allow_unused=True
            )
        )
        grads = {source: {name: next(found) for name in params} for source, params in sources.items()}
        for source, target in self.pairs:
            if all(grad is None for grad in grads[source].values()):
                raise ValueError(f'`ttt_module_paths` has {source!r}, on which the inner loss does not depend')
            wrapper = self.wrappers[target]
            new = {
                name: param if grads[source][name] is None else self.step(param, grads[source][name])
                for name, param in wrapper.batch_params.items()
            }
            wrapper.take(new)
        for source in sources.keys() - {target for _, target in self.pairs}:
            # the next gradient is that of the next segment alone: other ways back to these parameters do not count
            self.wrappers[source].take({name: p.view_as(p) for name, p in sources[source].items()})
