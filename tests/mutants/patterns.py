"""Bugs on purpose in patterns; `mutants/__init__.py` has the form of a row."""

# fmt: off
BUGS = {
    'patterns/base.py': ('test_patterns.py', [
        ('a class without a name comes back as another', 'PATTERNS.get(kind.name) is not kind', 'kind.name not in PATTERNS'),
        ('parts may have no name', '        check_known(one, flag)\n', '        pass\n'),
        ('a pair is seen by two parts of a union', 'branch.without(self.patterns[:at]) for', 'branch for'),
        ('heads are shared out anew', 'return one.of_head(head, count)', 'return one.of_head(0, count)'),
        ('all layers begin with the first pattern', 'return self.patterns[layer % len(self.patterns)]', 'return self.patterns[0]'),
        ('a config keeps the name of its class', "return {'pattern': self.name, **given}", "return {'pattern': type(self).__name__, **given}"),
        ('parts of a union have the length of the longest row', 'return type(self)(tuple([one.of_lengths(lengths, n) for one in self.patterns]))', 'return type(self)(tuple([one.of_length(n) if one.depends_on_length else one for one in self.patterns]))', 'test_patterns_of_rows.py'),
        ('a pattern of one length takes several', 'if not self.depends_on_length:\n            return self', 'if True:\n            return self', 'test_patterns_of_rows.py'),
    ]),
    'patterns/branches.py': ('test_patterns.py', [
        ('what another pattern hides is seen', 'seen = seen & other.visible(i, j, marks)', 'seen = seen'),
        ('the period of a union is that of its first', 'math.lcm(*(period for', 'min(*(period for'),
    ]),
    'patterns/local.py': ('test_patterns.py', [
        ('a dilation reaches no further', 'reach = self.window * self.step', 'reach = self.window'),
        ('a window sees nothing ahead', '0 if causal else self.window, self.step)', '0, self.step)'),
        ('a block of queries sees its memory from the query on', 'first = i // self.query_block * self.query_block', 'first = i'),
    ]),
    'patterns/strided.py': ('test_patterns.py', [
        ('a query does not see itself', 'Branch(Span(ITSELF, 0, 0), lambda i, j, marks=None: i == j, 1),', ''),
        ('all heads sum up by the same tokens', 'back=head % (self.stride // self.c)', 'back=0'),
        ('a sum is of the first tokens', 'stop = self.stride - self.back * self.c', 'stop = self.c'),
    ]),
    'patterns/tokens.py': ('test_patterns.py', [
        ('global queries see as others do', 'self.chosen(i, marks) & ~self.chosen(j, marks)', 'self.chosen(i, marks) & (i == j)'),
        ('keys of two global tokens count twice', 'self.chosen(i, marks) & ~self.chosen(j, marks)', 'self.chosen(i, marks)'),
    ]),
    'patterns/drawing.py': ('test_patterns.py', [
        ('a picture shows what is ahead', 'return seen & (j <= i) if causal else seen', 'return seen'),
    ]),
    'patterns/behind.py': ('test_patterns.py test_patterns_of_blocks.py', [
        ('chunks do not reach the next', 'else layout.size - 1', 'else 0'),
        ('the end of a chunk is left out', 'joined = torch.cat((before, moved.masked_fill(twice, -1)), dim=-1)', 'joined = moved'),
        ('keys are read twice', 'moved.masked_fill(twice, -1)', 'moved'),
        ('the first ones are seen', '(own >= 0) & (key >= 0)', 'own >= 0'),
    ]),
    'patterns/images.py': ('test_patterns_of_blocks.py', [
        ('tiles at the right are as wide as all', 'wide = (width - left).clamp(max=columns)\n    rest', 'wide = (width - left).clamp(min=columns, max=columns)\n    rest'),
        ('the flange is on one side', 'key_columns = around(left - beside,', 'key_columns = around(left,'),
        ('squares reach around the edge', 'rows, columns = i // width - j // width, i % width - j % width', 'rows, columns = (i - j) // width, (i - j) % width'),
    ]),
    'patterns/blocks.py': ('test_patterns_of_blocks.py', [
        ('heads draw the same blocks', 'state = mixed(mixed(torch.full_like(head, self.seed), self.layer), head)', 'state = mixed(mixed(torch.full_like(head, self.seed), self.layer), 0 * head)'),
        ('a block is drawn twice', 'torch.where((found == one.unsqueeze(-1)).any(dim=-1), most, one)', 'one'),
        ('blocks are drawn of those behind alone', 'torch.where(found < before, first + found, behind + found - before)', 'behind + found % (end - behind).clamp(min=1).unsqueeze(-1)'),
        ('keys of global blocks are seen twice', 'return self.near(i, j) & ~self.is_global(i) & ~self.is_global(j)', 'return self.near(i, j) & ~self.is_global(i)'),
        ('heads are shared evenly', 'return tuple([least if other else heads - least * sum(others) for other in others])', 'return None'),
        ('blocks are shifted the other way', 'first = (torch.arange(filled) + self.shift)', 'first = (torch.arange(filled) - self.shift)'),
        ('what is stored is not read', 'if table is not None and table.shape[1] == blocks:', 'if False:'),
        ('blocks of rows are shifted the other way', 'keys = (first + slot // block + self.shift) % filled', 'keys = (first + slot // block - self.shift) % filled', 'test_patterns_of_rows.py'),
        ('what is stored is not read by rows', 'drawn = torch.where(blocks.unsqueeze(-1) == table.shape[1], known, drawn)', 'pass', 'test_patterns_of_rows.py -kare_stored'),
        ('a short row sees blocks at random', 'return torch.where(blocks.unsqueeze(-1) < self.most, every, drawn)', 'return drawn', 'test_patterns_of_rows.py'),
        ('fewer tokens than blocks see one each', 'return seen | (length < self.blocks)', 'return seen', 'test_patterns_of_rows.py test_patterns_of_blocks.py'),
        ('empty blocks count', 'seen = j // block == (i // block + self.shift) % filled', 'seen = j // block == (i // block + self.shift) % self.blocks', 'test_patterns_of_rows.py test_patterns_of_blocks.py'),
        ('last blocks are global where the longest row ends', 'slot, slot + (count - last - first) * block)', 'slot, slot + (count.amax() - last - first) * block)', 'test_patterns_of_rows.py -kends'),
    ]),
}
