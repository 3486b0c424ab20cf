"""Bugs on purpose in memory; `mutants/__init__.py` has the form of a row."""

# fmt: off
BUGS = {
    'memory/datastore.py': ('test_datastore.py', [
        ('damaged blocks are read', "if f'{zlib.crc32(self.data):08x}' != self.crc32:", 'if False:'),
        ('a store of another text goes on', 'if passed < len(self):', 'if False:'),
        ('values are those of the block before', 'values[place] = block_values[own - number * self.block].long()', 'values[place] = block_values[own - number * self.block - 1].long()'),
        ('more entries than there is room for', 'if len(self) + len(keys) > self.size:', 'if False:'),
    ]),
    'memory/index.py': ('test_datastore.py', [
        ('keys of cosines keep their length in an index', "F.normalize(vectors, dim=-1) if self.metric == 'cosine' else vectors", 'vectors'),
        ('an index of products is one of distances', "kind = self.module.METRIC_INNER_PRODUCT if self.metric == 'ip' else", 'kind ='),
        ('far shards come first', "return (-distances if self.metric == 'ip' else distances), index\n", 'return distances, index\n'),
        ('an index of another metric is read', 'if found[name] != self.notes[name]:', 'if False:'),
    ]),
    'memory/keys.py': ('test_datastore.py', [
        ('the first token of a document is a value', "wanted = wanted & ~begins(inputs['document_ids'])", 'wanted = wanted & True'),
        ('a token is its own value', 'labels[rows, places + 1])', 'labels[rows, places])'),
    ]),
    'memory/knn_lm.py': ('test_knn_lm.py', [
        ('far neighbours count more', 'weights = -found.distances / temperature', 'weights = found.distances / temperature'),
        ('shares are swapped', 'torch.logaddexp(log_share(lam) + log_knn, log_share(1 - lam) + log_lm)', 'torch.logaddexp(log_share(1 - lam) + log_knn, log_share(lam) + log_lm)'),
        ('copies of a key count once', 'scatter_add(-1, found.values, terms)', 'scatter(-1, found.values, terms)'),
    ]),
    'memory/retrieval.py': ('test_knn_lm.py', [
        ('keys of another model are looked up', "if owner['fingerprint'] != fingerprint(net):", 'if False:'),
    ]),
    'memory/spalm.py': ('test_spalm.py', [
        ('the gate is the other way round', '(1 - gate) * m + gate * h', 'gate * m + (1 - gate) * h'),
        ('what is missing is found', 'there = neighbours >= 0', 'there = neighbours > -2'),
    ]),
    'memory/search.py': ('test_datastore.py', [
        ('the furthest are chosen', 'best, chosen = best.topk(count, dim=-1, largest=False, sorted=False)', 'best, chosen = best.topk(count, dim=-1, largest=True, sorted=False)'),
        ('cosines are products', "if metric == 'cosine' else part).mT)", 'if False else part).mT)'),
        ('the length of a query counts', "queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)", 'keys = F.normalize(keys, dim=-1)'),
        ('the smallest products are near', "return (1 if metric == 'cosine' else 0) - (queries", "return (1 if metric == 'cosine' else 0) + (queries"),
        ('excluded entries are found', 'distances = distances.masked_fill(own == left_out.unsqueeze(-1), torch.inf)', 'pass'),
    ]),
    'memory/texts.py': ('test_datastore.py', [
        ('tokens known from the row before are stored again', 'labels[row, :known] = IGNORED', 'pass'),
    ]),
}
