"""Draw handwritten digits: images become tokens, and a model writes the tokens of the digit that is asked for.

    python examples/draw_digits.py                     MaskGIT: hidden tokens, filled in over a few steps
    python examples/draw_digits.py --model dalle       DALL-E: one token after the other, behind a text of one word
    python examples/draw_digits.py --tokenizer vq      tokens of a vector-quantised autoencoder
    python examples/draw_digits.py --out digits.png    and draw ten of each

A discrete variational autoencoder (arXiv:1611.01144, as in arXiv:2102.12092), or a vector-quantised one
(arXiv:1711.00937), makes 16 tokens of 8 by 8 pixels, and pixels of tokens. A classifier, the model of
classify_images.py, says how many of the drawn digits it takes for what was asked for; it has seen the real ones alone.

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from classify_images import Config as ClassifierConfig, bent, build_model, read_digits
    from common.options import exit_code, not_negative, positive, seed, size
    from common.toys import fit, heads
    from torch import Tensor, nn

    from x_transformers import DALLE, Decoder, Encoder, NonAutoregressiveWrapper, TransformerWrapper, VectorQuantizer

CODES, GRID, DIGITS = 64, 4, 10


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--model', choices=('maskgit', 'dalle'), default='maskgit', help='what writes the tokens (maskgit)')
    add('--tokenizer', choices=('dvae', 'vq'), default='dvae', help='what makes the tokens (dvae)')
    add('--steps', type=size, default=1500, help='of its training (1500)')
    add('--tokenizer-steps', type=size, default=1000, help='of training that of the tokens (1000)')
    add('--classifier-steps', type=size, default=500, help='of training the classifier (500)')
    add('--batch-size', type=size, default=64, help='images of a step (64)')
    add('--samples', type=size, default=500, help='to draw at the end (500)')
    add('--cond-scale', type=not_negative, default=1.0, help='how much the digit that is asked for counts (1)')
    add('--lr', type=positive, default=2e-3, help='highest learning rate of all three, 0 in the last step (0.002)')
    add('--seed', type=seed, default=0, help='of weights and data (0)')
    add('--out', type=Path, help='a picture of ten of each digit')
    return parser.parse_args(argv)


# tokens of images


class DiscreteVAE(nn.Module):
    """Images (b 1 8 8) as ids (b 16) of a table of vectors, and back.

    In training each id is drawn by Gumbel noise and softened by a temperature, which falls from 1 to 1/16.
    """

    def __init__(self, width: int = 64, out: int = CODES) -> None:
        super().__init__()
        down = nn.Conv2d(width, width, 4, stride=2, padding=1)
        self.to_codes = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), down, nn.ReLU(), nn.Conv2d(width, out, 1)
        )
        self.table: nn.Module = nn.Embedding(CODES, width)
        up = nn.ConvTranspose2d(width, width, 4, stride=2, padding=1)
        self.to_pixels = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), up, nn.ReLU(), nn.Conv2d(width, 1, 3, padding=1)
        )

    def forward(self, images: Tensor, temperature: float) -> Tensor:
        """The loss: of pixels, and a little of ids that are not used evenly."""
        logits = self.to_codes(images)
        soft = F.gumbel_softmax(logits, tau=temperature, dim=1)
        shares = logits.softmax(dim=1).mean(dim=(0, 2, 3))
        made = self.to_pixels(torch.einsum('b k h w, k d -> b d h w', soft, self.table.weight))
        return F.mse_loss(made, images) + 0.01 * (shares * (shares * CODES).log()).sum()

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        return self.to_codes(images).argmax(dim=1).flatten(1)

    @torch.no_grad()
    def decode(self, ids: Tensor) -> Tensor:
        return self.to_pixels(self.table(ids).mT.unflatten(2, (GRID, GRID))).clamp(-1, 1)


class QuantisedVAE(DiscreteVAE):
    """The same by a `VectorQuantizer`, whose codes are moving averages: no noise, no temperature."""

    def __init__(self, width: int = 64) -> None:
        super().__init__(width, out=width)
        self.table = VectorQuantizer(width, CODES, decay=0.99, revive_below=1.0)

    def vectors(self, images: Tensor) -> Tensor:
        return self.to_codes(images).flatten(2).mT

    def forward(self, images: Tensor, temperature: float) -> Tensor:
        codes, _, loss = self.table(self.vectors(images))
        return F.mse_loss(self.to_pixels(codes.mT.unflatten(2, (GRID, GRID))), images) + loss

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        training = self.table.training
        ids = self.table.eval()(self.vectors(images)).ids
        self.table.train(training)
        return ids

    @torch.no_grad()
    def decode(self, ids: Tensor) -> Tensor:
        return self.to_pixels(self.table.codes(ids).mT.unflatten(2, (GRID, GRID))).clamp(-1, 1)


TOKENIZERS = {'dvae': DiscreteVAE, 'vq': QuantisedVAE}


# models of tokens


class MaskGIT(nn.Module):
    """Tokens (b 16) of digits (b), by cross-attention to what is asked for (arXiv:2202.04200)."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.digits = nn.Embedding(DIGITS, dim)
        stack = Encoder(**heads(dim), depth=3, cross_attend=True, use_rmsnorm=True, ff_glu=True)
        net = TransformerWrapper(num_tokens=CODES + 1, max_seq_len=GRID**2, attn_layers=stack)
        ways = dict(steps=8, schedule='cosine', ceil_counts=True, use_simple_mdlm_loss_weight=False)
        exact = dict(no_replace_prob=0.0, random_token_prob=0.0)
        self.net = NonAutoregressiveWrapper(net, mask_id=CODES, cond_drop_prob=0.1, **ways, **exact)

    def forward(self, ids: Tensor, digits: Tensor) -> Tensor:
        return self.net(ids, context=self.digits(digits).unsqueeze(1)).loss

    def drawn(self, digits: Tensor, scale: float) -> Tensor:
        context = self.digits(digits).unsqueeze(1)
        return self.net.generate(batch_size=len(digits), context=context, cond_scale=scale)


class Writer(nn.Module):
    """The same by a `DALLE` whose text is one word."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        sizes = dict(num_text_tokens=DIGITS, text_seq_len=1, num_image_tokens=CODES, image_grid=GRID)
        stack = Decoder(**heads(dim), depth=3, use_rmsnorm=True, ff_glu=True)
        self.net = DALLE(attn_layers=stack, **sizes, cond_drop_prob=0.1)

    def forward(self, ids: Tensor, digits: Tensor) -> Tensor:
        return self.net(digits.unsqueeze(1), ids).loss

    def drawn(self, digits: Tensor, scale: float) -> Tensor:
        return self.net.generate(digits.unsqueeze(1), cond_scale=scale)


MODELS = {'maskgit': MaskGIT, 'dalle': Writer}


def trained(args: argparse.Namespace) -> tuple[nn.Module, DiscreteVAE, nn.Module, tuple[Tensor, Tensor]]:
    """The model of tokens, that of images, the classifier, and digits that none has seen."""
    torch.manual_seed(args.seed)
    parts, draws = read_digits(args.seed), torch.Generator().manual_seed(args.seed)
    known = parts['train']

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(known[1]), (args.batch_size,), generator=draws)
        return bent(known[0][rows], 1.0, draws), known[1][rows]

    def options(steps: int) -> argparse.Namespace:
        return argparse.Namespace(steps=steps, lr=args.lr)

    classifier, tokenizer, model = build_model(ClassifierConfig()), TOKENIZERS[args.tokenizer](), MODELS[args.model]()

    def loss_of_classifier() -> Tensor:
        images, digits = batch()
        return F.cross_entropy(classifier(images), digits)

    fit(classifier, loss_of_classifier, options(args.classifier_steps))
    done = iter(range(args.tokenizer_steps))
    loss_of_tokens = lambda: tokenizer(batch()[0], 16 ** (-next(done) / args.tokenizer_steps))  # noqa: E731
    fit(tokenizer, loss_of_tokens, options(args.tokenizer_steps))

    def loss() -> Tensor:
        images, digits = batch()
        return model(tokenizer.encode(images), digits)

    return fit(model, loss, options(args.steps)), tokenizer, classifier, parts['test']


def used(ids: Tensor) -> float:
    """Perplexity of the tokens: how many codes are used, if they were used evenly."""
    shares = ids.flatten().bincount(minlength=CODES) / ids.numel()
    return torch.special.entr(shares).sum().exp().item()


@torch.no_grad()
def taken_for(classifier: nn.Module, images: Tensor, digits: Tensor) -> float:
    """Share of images that the classifier takes for these digits."""
    return (classifier(images).argmax(dim=-1) == digits).float().mean().item()


def work(args: argparse.Namespace) -> None:
    model, tokenizer, classifier, (images, labels) = trained(args)
    digits = torch.arange(DIGITS).repeat(-(-args.samples // DIGITS))[: args.samples]
    drawn = tokenizer.decode(model.drawn(digits, args.cond_scale))
    print(f'real digits are taken for what they are: {taken_for(classifier, images, labels):.1%}')
    ids = tokenizer.encode(images)
    through = tokenizer.decode(ids)
    error = F.mse_loss(through, images).item()
    print(f'tokens: squared error {error:.4f} of the pixels, {used(ids):.1f} of {CODES} codes in use')
    print(f'the same, as tokens and back: {taken_for(classifier, through, labels):.1%}')
    print(f'drawn digits are taken for what was asked for: {taken_for(classifier, drawn, digits):.1%}')
    if args.out is not None:
        from common.pictures import write_figure
        from matplotlib.figure import Figure

        shown = tokenizer.decode(model.drawn(torch.arange(DIGITS).repeat_interleave(DIGITS), args.cond_scale))
        framed = F.pad(shown, (1, 1, 1, 1), value=-1.0)
        sheet = framed.view(DIGITS, DIGITS, 10, 10).permute(0, 2, 1, 3).reshape(DIGITS * 10, DIGITS * 10)
        figure = Figure(figsize=(4, 4), layout='constrained')
        axes = figure.subplots()
        axes.imshow(sheet.numpy(), cmap='gray_r', vmin=-1, vmax=1)
        axes.set_axis_off()
        write_figure(figure, args.out, 'the picture of digits')


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('draw_digits.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())
