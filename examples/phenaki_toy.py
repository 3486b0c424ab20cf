"""Videos from words, and longer ones from further words: masked tokens of all frames, filled in at once.

    python examples/phenaki_toy.py                    train, and say how often a dot goes where the words say
    python examples/phenaki_toy.py --out story.png    and draw a story of several words, frame by frame

A dot moves by one pixel in each frame, out on one side and in on the other; a token is a patch of 2 by 2 pixels.
The model reads all frames both ways and the word by cross-attention, learns to guess hidden tokens (MaskGIT), and
writes a video from its first frames. `extend` keeps the last frames of a video and goes on with another word, as
Phenaki does (arXiv:2210.02399).

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import packages

with packages():
    import torch
    from common.options import bounded, exit_code, positive, seed, size
    from torch import Tensor, nn
    from tqdm import trange

    from x_transformers import Encoder, NonAutoregressiveWrapper, TransformerWrapper

HEADS, PATCH = 4, 2
EMPTY, HIDDEN = 0, 1 + PATCH**2  # tokens; those between say where in its patch the dot is
WORDS = {'right': (0, 1), 'left': (0, -1), 'down': (1, 0), 'up': (-1, 0)}
STEPS_OF = torch.tensor(list(WORDS.values()))


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--steps', type=size, default=900, help='of training (900)')
    add('--batch-size', type=size, default=128, help='videos of a step (128)')
    add('--dim', type=bounded(int, HEADS), default=64, help='width of the model (64)')
    add('--depth', type=size, default=2, help='its blocks (2)')
    add('--side', type=bounded(int, 4), default=4, help='rows and columns of a frame (4)')
    add('--frames', type=bounded(int, 3), default=5, help='of a clip (5)')
    add('--keep', type=size, default=1, help='frames that a clip begins with, the last ones of the clip before (1)')
    add('--clips', type=size, default=200, help='stories to tell at the end (200)')
    add('--lr', type=positive, default=2e-3, help='highest learning rate, 0 in the last step (0.002)')
    add('--seed', type=seed, default=0, help='of weights and videos (0)')
    add('--out', type=Path, help='a picture of a story')
    args = parser.parse_args(argv)
    if args.dim % HEADS:
        parser.error(f'--dim {args.dim} cannot be divided by {HEADS}')
    if args.side % PATCH:
        parser.error(f'--side {args.side} cannot be divided by {PATCH}')
    if args.keep >= args.frames:
        parser.error(f'--keep {args.keep} leaves nothing of {args.frames} --frames')
    return args


# data


def moved(place: Tensor, steps: Tensor, side: int) -> Tensor:
    """Where dots (b 2) are behind so many steps (b t 2)."""
    return (place.unsqueeze(1) + steps.cumsum(dim=1)) % side


def drawn(places: Tensor, side: int) -> Tensor:
    """Tokens (b (t h w)) of dots at places (b t 2)."""
    patch, within = places // PATCH, places % PATCH
    at = patch[..., 0] * (side // PATCH) + patch[..., 1]
    token = 1 + within[..., 0] * PATCH + within[..., 1]
    video = torch.full((*at.shape, (side // PATCH) ** 2), EMPTY)
    return video.scatter(2, at.unsqueeze(-1), token.unsqueeze(-1)).flatten(1)


def found(frames: Tensor, side: int) -> Tensor:
    """Where dots are (b 2) in frames of tokens (b (h w)), the first place that is not empty."""
    at = (frames != EMPTY).long().argmax(dim=-1, keepdim=True)
    patch = torch.cat((at // (side // PATCH), at % (side // PATCH)), dim=-1)
    token = (frames.gather(1, at) - 1).clamp(min=0)
    return patch * PATCH + torch.cat((token // PATCH, token % PATCH), dim=-1)


def clips(count: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Tokens of clips, and their words (b). The frames that a clip begins with have come in any direction."""
    before = STEPS_OF[torch.randint(0, len(WORDS), (count,))].unsqueeze(1).expand(-1, args.keep, -1)
    words = torch.randint(0, len(WORDS), (count,))
    behind = STEPS_OF[words].unsqueeze(1).expand(-1, args.frames - args.keep, -1)
    start = torch.randint(0, args.side, (count, 2))
    return drawn(moved(start, torch.cat((before, behind), dim=1), args.side), args.side), words


# model


class Phenaki(nn.Module):
    """Tokens of videos from words."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        grid = args.side // PATCH
        self.frame, self.keep, length = grid**2, args.keep, args.frames * grid**2
        self.words = nn.Embedding(len(WORDS), args.dim)
        flags = dict(cross_attend=True, use_rmsnorm=True, ff_glu=True)
        stack = Encoder(dim=args.dim, depth=args.depth, heads=HEADS, attn_dim_head=args.dim // HEADS, **flags)
        places = dict(max_seq_len=length, axial_abs_pos_emb=(args.frames, grid, grid))
        net = TransformerWrapper(num_tokens=HIDDEN + 1, attn_layers=stack, **places)
        for table in net.axial_pos:
            nn.init.normal_(table, std=0.3)  # places matter from the first step
        maskgit = dict(schedule='cosine', ceil_counts=True, use_simple_mdlm_loss_weight=False)
        unchanged = dict(no_replace_prob=0.0, random_token_prob=0.0)  # what is hidden is hidden
        self.net = NonAutoregressiveWrapper(net, mask_id=HIDDEN, steps=8, **maskgit, **unchanged)

    def forward(self, video: Tensor, words: Tensor) -> Tensor:
        return self.net(video, context=self.words(words).unsqueeze(1)).loss

    def begun(self, frames: Tensor, words: Tensor) -> Tensor:
        """A clip (b n) that begins with these frames."""
        given = torch.full((len(frames), self.net.max_seq_len), HIDDEN)
        given[:, : frames.shape[1]] = frames
        options = dict(start_temperature=0.1, filter_thres=None)
        return self.net.generate(given=given, context=self.words(words).unsqueeze(1), **options)

    @torch.no_grad()
    def extend(self, video: Tensor, words: Tensor, keep: int | None = None) -> Tensor:
        """A longer video: a clip that begins with the last `keep` frames, and goes on as other words say."""
        keep = self.keep if keep is None else keep
        frames, clip = video.shape[1] // self.frame, self.net.max_seq_len // self.frame
        if not 1 <= keep <= min(frames, clip - 1):
            raise ValueError(f'`keep` got {keep}, it must be from 1 to {min(frames, clip - 1)} frames')
        last = video[:, -keep * self.frame :]
        return torch.cat((video, self.begun(last, words)[:, last.shape[1] :]), dim=1)


def train(args: argparse.Namespace) -> Phenaki:
    torch.manual_seed(args.seed)
    model = Phenaki(args)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in trange(args.steps, dynamic_ncols=True):
        optimizer.param_groups[0]['lr'] = args.lr * min(1.0, (step + 1) / 20) * (1 - step / args.steps)
        model(*clips(args.batch_size, args)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


# results


def followed(video: Tensor, words: Tensor, known: int, args: argparse.Namespace) -> Tensor:
    """Whether all frames of videos (b n) behind the first `known` show the dot where the words (b t) lead it."""
    frames = video.unflatten(1, (-1, (args.side // PATCH) ** 2))
    start = found(frames[:, known - 1], args.side)
    wanted = drawn(moved(start, STEPS_OF[words], args.side), args.side)
    return (frames[:, known:].flatten(1) == wanted).all(dim=1)


def told(model: Phenaki, args: argparse.Namespace, chapters: int = 2) -> tuple[Tensor, Tensor]:
    """Stories that begin with frames of the data: their videos, and whether each chapter follows its word (b c)."""
    video = clips(args.clips, args)[0][:, : args.keep * model.frame]
    right = []
    for _ in range(chapters):
        words = torch.randint(0, len(WORDS), (args.clips,))
        before = video.shape[1] // model.frame
        video = model.extend(video, words)
        new = video.shape[1] // model.frame - before
        right.append(followed(video, words.unsqueeze(1).expand(-1, new), before, args))
    return video, torch.stack(right, dim=1)


def work(args: argparse.Namespace) -> None:
    model = train(args)
    video, right = told(model, args)
    shares = ', '.join(f'{share:.1%}' for share in right.float().mean(dim=0).tolist())
    print(f'the dot goes where the words say in {shares} of {args.clips} first and second clips')
    if args.out is not None:
        from matplotlib.figure import Figure

        frames = video[0].unflatten(0, (-1, model.frame))
        figure = Figure(figsize=(1.2 * len(frames), 1.4), layout='constrained')
        for axis, frame in zip(figure.subplots(1, len(frames)), frames, strict=True):
            picture = torch.zeros(args.side, args.side)
            picture[tuple(found(frame.unsqueeze(0), args.side)[0])] = 1
            axis.imshow(picture.numpy(), vmin=0, vmax=1)
            axis.set_axis_off()
        figure.savefig(args.out)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('phenaki_toy.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())
