"""The tree of sums: one bracketing for any number of workers, and few buffers."""

from minicait.train.tree import (
    LARGE,
    MAX_LEAVES,
    Node,
    additions,
    buffers_needed,
    cover,
    even_ranges,
    fold,
    leaf_count,
    most_buffers,
)

LEAVES, WORKERS = range(1, 65), range(1, 17)


def sum_of(leaves, workers, single=False):
    """The sum of leaf 0, 1, … as nested pairs, added up by so many workers."""
    buffers, nodes = {}, []
    for worker, own in enumerate(even_ranges(leaves, workers)):

        def compute(leaf, number, accumulate, worker=worker):
            buffers[worker, number] = (buffers[worker, number], leaf) if accumulate else leaf

        def add(into, number, worker=worker):
            buffers[worker, into] = (buffers[worker, into], buffers.pop((worker, number)))

        nodes += [node._replace(buffer=(worker, node.buffer)) for node in fold(own, compute, add, lambda leaf: single)]
    for into, other in additions(nodes)[0]:
        buffers[into] = (buffers[into], buffers.pop(other))
    assert list(buffers) == [nodes[0].buffer]
    return buffers[nodes[0].buffer]


def flattened(expression):
    if not isinstance(expression, tuple):
        return [expression]
    return [leaf for side in expression for leaf in flattened(side)]


def test_one_bracketing_for_any_number_of_workers():
    for leaves in LEAVES:
        want = sum_of(leaves, 1)
        assert flattened(want) == list(range(leaves))  # every leaf once, in order
        for workers in WORKERS:
            assert sum_of(leaves, workers) == sum_of(leaves, workers, single=True) == want, (leaves, workers)


def test_the_tree_of_the_docstring():
    assert sum_of(5, 2) == (((0, 1), (2, 3)), 4)
    shares = even_ranges(5, 2)
    assert shares == [range(2), range(2, 5)]
    nodes = [[node[:2] for node in fold(own, *[lambda *_: None] * 3)] for own in shares]
    assert nodes == [[(1, 0)], [(1, 2), (0, 4)]]
    assert Node(0, 1, None).joins(Node(0, 0, None)) and not Node(0, 2, None).joins(Node(0, 1, None))


def test_buffers_needed_is_what_fold_uses_and_about_the_logarithm_of_the_leaves():
    for leaves in LEAVES:
        assert buffers_needed(range(leaves)) == leaves.bit_length()
        for workers in WORKERS:
            for own in even_ranges(leaves, workers):
                written = set()
                for single in (True, False):  # which never needs more
                    compute = lambda leaf, buffer, accumulate, written=written: written.add(buffer)  # noqa: E731
                    fold(own, compute, lambda into, buffer: None, lambda leaf, single=single: single)
                assert written == set(range(buffers_needed(own)))
                assert len(written) <= 2 * len(own).bit_length()


def test_most_buffers_suffice_for_any_batch():
    """Memory for them is shared once, before the size of any batch is known."""
    for most in (MAX_LEAVES // 2, MAX_LEAVES):
        assert most_buffers(most, 1) == most.bit_length()
        for workers in range(1, 2 * MAX_LEAVES):
            needed = [buffers_needed(own) for n in range(1, most + 1) for own in even_ranges(n, min(workers, n))]
            assert max(needed) <= most_buffers(most, workers) <= most.bit_length()


def test_shares_are_contiguous_and_even():
    for count in range(40):
        for among in WORKERS:
            parts = even_ranges(count, among)
            assert len(parts) == among and [i for part in parts for i in part] == list(range(count))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_number_of_leaves():
    """It follows from model and batch alone. Large models have fewer: every partial sum is as large as the model."""
    assert [leaf_count(pieces, LARGE - 1) for pieces in (1, 5, 16, 17, 1000)] == [1, 5, 16, 16, 16] and MAX_LEAVES == 16
    assert [leaf_count(pieces, LARGE) for pieces in (1, 5, 8, 17, 1000)] == [1, 5, 8, 8, 8]


def test_ranks_are_left_with_the_nodes_of_their_cover():
    for leaves in LEAVES:
        want = sum_of(leaves, 1)
        for ranks in range(1, min(leaves, 16) + 1):
            buffers, nodes = {}, []
            for rank, own in enumerate(even_ranges(leaves, ranks)):
                for node in cover(own):
                    buffers[rank, node.buffer] = shifted(sum_of(1 << node.level, 1), node.first)
                    nodes.append(node._replace(buffer=(rank, node.buffer)))
            pairs, left = additions(nodes)
            for into, other in pairs:
                buffers[into] = (buffers[into], buffers.pop(other))
            assert [buffers[left[0].buffer]] == [want], (leaves, ranks)
            assert len(cover(range(leaves))) <= 7  # the partial sums that a rank sends


def shifted(expression, by):
    return tuple(shifted(side, by) for side in expression) if isinstance(expression, tuple) else expression + by
