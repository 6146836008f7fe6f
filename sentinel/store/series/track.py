"""Series of signals in buckets of consecutive records: few points for a run of any length.

Rows of one event are gathered in buckets of `size` rows. A bucket has of each signal the number of
finite values, their mean and range, the range over the ranks and the rank with the highest value,
and whether a value was not finite. When there are too many buckets, pairs of them are merged, and
`size` doubles: memory stays bounded, and no extreme and no NaN is lost. It is plain Python, since
the agent's process does not import numpy: it works on whole columns, with the built-in functions.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from math import inf, isfinite
from operator import and_, getitem, le, mul, or_, truediv
from typing import Any, NamedTuple

from sentinel.model.record import Event
from sentinel.store.record_rows import (
    FULL_SPREAD,
    RANGE_SPREADS,
    RANK_SPREADS,
    RowLayout,
    split_rank_format,
)
from sentinel.store.series.blocks import unpack_signals
from sentinel.store.series.charted_signals import LOW, VALUE, chart_name
from sentinel.store.series.summary import (
    EMPTY,
    NO_RANGE,
    NO_RANK,
    Range,
    Summary,
    merge_summaries,
    summarize,
)

MAX_BUCKETS = 4096
"""Buckets of one event; fewer if there are many signals."""
MAX_CELLS = 256 * 1024
"""Buckets times signals, each of which takes about 50 bytes."""
MIN_BUCKETS = 256
MAX_SIGNALS = 1000
"""Signals of one event that are read: the first ones."""
MAX_UNMERGED_SHARE = 0.75
"""Share of the buckets that may remain in a merge; else buckets of several attempts are merged."""


class StoredRow(NamedTuple):
    """A row or a block; `layout` is negative for blocks, which begin at `first_step`."""

    id: int
    attempt: int
    step: int
    time: float
    event: str
    layout: int
    numbers: bytes
    first_step: int
    first_time: float


Found = dict[str, list[Summary]]


class _RankValues(NamedTuple):
    """Where the rows have the values of the ranks of a signal, and since 0.2.0 their range."""

    signal: str
    column: int
    place: slice
    number: str
    ranks: tuple[int, ...]
    range_column: int | None

    def find_range(self, columns: Sequence[Sequence[Any]], blobs: Sequence[bytes]) -> Range:
        """Their range, and the rank with the highest value, or the first without a finite one."""
        if self.range_column is not None and isfinite(sum(columns[self.column])):
            lows, highs, places = columns[self.range_column : self.range_column + 3]
            high = max(highs)
            return min(lows), high, self.ranks[places[highs.index(high)]]
        parts = b"".join([blob[self.place] for blob in blobs])
        values = array(self.number, parts).tolist()
        bad = None
        finite = values
        if not isfinite(sum(values)):
            finite = [value for value in values if isfinite(value)]
            bad = next((at for at, value in enumerate(values) if not isfinite(value)), None)
        if not finite:
            return inf, -inf, self.ranks[0]
        high = max(finite)
        worst = values.index(high) if bad is None else bad
        return min(finite), high, self.ranks[worst % len(self.ranks)]


class RowDecoder:
    """Summarizes rows of one layout, all of whose numbers it reads as columns.

    `wanted` are the signals to read; None for all.
    """

    def __init__(self, layout: RowLayout, event: Event, wanted: frozenset[str] | None) -> None:
        self._layout = layout
        self._values: list[tuple[int, str]] = []
        self._ranges: dict[str, list[int]] = {}
        self._rank_ranges: list[tuple[str, int, int, int]] = []
        self._rank_values: list[_RankValues] = []
        self._full = False
        parts: list[str] = []
        column, signal_of, column_of = 0, dict[str, str](), dict[str, int]()
        for name in layout.names:
            target = chart_name(event, name)
            if target is None or (wanted is not None and target[0] not in wanted):
                parts.append("8x")
                continue
            signal, role = target
            if role == VALUE:
                self._values.append((column, signal))
                signal_of[name], column_of[name] = signal, column
            else:
                self._ranges.setdefault(signal, [-1, -1])[role - LOW] = column
            parts.append("d")
            column += 1
        offset = 8 * len(layout.names)
        for name, kind, _, layout_format, ranks in layout.spreads:
            size = struct.calcsize(f"<{layout_format}")
            signal = signal_of.get(name, "")
            if signal and kind in RANK_SPREADS:
                values_format, range_format = split_rank_format(layout_format)
                has_range = bool(range_format)
                self._rank_values.append(
                    _RankValues(
                        signal,
                        column_of[name],
                        slice(offset, offset + struct.calcsize(f"<{values_format}")),
                        values_format[-1],
                        ranks,
                        column if has_range else None,
                    )
                )
                parts.append(f"{struct.calcsize(f'<{values_format}')}x{range_format}")
                column += 3 * has_range
            elif signal and kind in RANGE_SPREADS:
                numbers = int(layout_format[0])
                parts.append(layout_format)
                self._rank_ranges.append(
                    (signal, column + numbers - 2, column + numbers - 1, column + numbers)
                )
                column += numbers + 1
            else:
                self._full |= bool(signal) and kind == FULL_SPREAD
                parts.append(f"{size}x")
            offset += size
        self._signal_of = signal_of
        self._numbers = struct.Struct("<" + "".join(parts))
        self.size = layout.numbers.size
        self._has_rest = any(kind == FULL_SPREAD for _, kind, *_ in layout.spreads)

    def add(self, blobs: Sequence[bytes], found: Found) -> None:
        """Add the summary of these rows to that of each signal.

        Raises ValueError if the rows are not of this layout.
        """
        rests: Sequence[bytes] = ()
        if self._has_rest:
            rests = [blob[self.size :] for blob in blobs]
            blobs = [blob[: self.size] for blob in blobs]
        joined = blobs[0] if len(blobs) == 1 else b"".join(blobs)
        if len(joined) != self.size * len(blobs) or set(map(len, blobs)) != {self.size}:
            raise ValueError("a row of the history does not fit its layout")
        if not self._values:
            return
        columns = [*zip(*self._numbers.iter_unpack(joined), strict=True)]
        ranges = self._find_ranges(columns, blobs, rests)
        for at, signal in self._values:
            summary = summarize(columns[at], ranges.get(signal, NO_RANGE))
            found.setdefault(signal, []).append(summary)

    def _find_ranges(
        self, columns: Sequence[Sequence[Any]], blobs: Sequence[bytes], rests: Sequence[bytes]
    ) -> dict[str, Range]:
        """The range over the ranks of each signal that has one."""
        ranges: dict[str, Range] = {}
        for signal, low, high, rank in self._rank_ranges:
            highest = max(columns[high])
            worst = columns[rank][columns[high].index(highest)]
            ranges[signal] = min(columns[low]), highest, worst
        for signal, (low, high) in self._ranges.items():
            if low >= 0 and high >= 0:
                lowest, highest = summarize(columns[low]).min, summarize(columns[high]).max
                ranges[signal] = lowest, highest, NO_RANK
        for each in self._rank_values:
            ranges[each.signal] = each.find_range(columns, blobs)
        if self._full:
            self._add_full_ranges(rests, ranges)
        return ranges

    def _add_full_ranges(self, rests: Sequence[bytes], ranges: dict[str, Range]) -> None:
        bad: set[str] = set()
        for name, row in chain.from_iterable(json.loads(rest).items() for rest in rests if rest):
            signal = self._signal_of.get(name)
            if signal is None:
                continue
            _, _, lowest, highest, _, _, _, max_rank, bad_ranks, *_ = row
            low, high, worst = ranges.get(signal, NO_RANGE)
            if signal not in bad and (bad_ranks or highest > high):
                worst = bad_ranks[0] if bad_ranks else max_rank
            if bad_ranks:
                bad.add(signal)
            if isfinite(highest):
                low, high = min(low, lowest), max(high, highest)
            ranges[signal] = low, high, worst


class BlockDecoder:
    """Summarizes blocks of one layout, as `RowDecoder` does rows."""

    def __init__(self, layout: RowLayout, event: Event, wanted: frozenset[str] | None) -> None:
        self._layout = layout
        self._targets = {
            name: target
            for name in layout.names
            if (target := chart_name(event, name)) is not None
            and (wanted is None or target[0] in wanted)
        }

    def add(self, blobs: Sequence[bytes], found: Found) -> None:
        """Add the summary of these blocks to that of each signal. Raises ValueError."""
        values: dict[str, list[Summary]] = {}
        ranges: dict[str, list[Summary]] = {}
        for blob in blobs:
            for name, (summary, _) in unpack_signals(self._layout, blob).items():
                if name in self._targets:
                    signal, role = self._targets[name]
                    if role == VALUE:
                        values.setdefault(signal, []).append(summary)
                    elif role == LOW:
                        ranges.setdefault(signal, []).append(EMPTY._replace(low=summary.min))
                    else:
                        ranges.setdefault(signal, []).append(EMPTY._replace(high=summary.max))
        for signal, summaries in values.items():
            # The ends of the range are signals of their own in a block.
            of_ranks = merge_summaries(ranges.get(signal, [EMPTY]))
            summary = merge_summaries(summaries)
            if of_ranks.low <= of_ranks.high:
                summary = summary._replace(low=of_ranks.low, high=of_ranks.high)
            found.setdefault(signal, []).append(summary)


class Column(NamedTuple):
    """One signal in all buckets of a track: an array for each field of `Summary`."""

    numbers: array[Any]
    means: array[Any]
    mins: array[Any]
    maxs: array[Any]
    bads: array[Any]
    lows: array[Any]
    highs: array[Any]
    worsts: array[Any]

    @classmethod
    def of_empty(cls, buckets: int) -> Column:
        """A column of that many empty buckets."""
        columns = zip("qdddqddi", EMPTY, strict=True)
        return cls(*[array(code, [value]) * buckets for code, value in columns])

    @property
    def has_ranks(self) -> bool:
        """Whether any bucket has a range over the ranks, or a worst rank."""
        return any(map(isfinite, self.highs)) or any(map(NO_RANK.__lt__, self.worsts))

    def append(self, summary: Summary) -> None:
        """Add a bucket."""
        for each, value in zip(self, summary, strict=True):
            each.append(value)

    def merge_last(self) -> None:
        """Merge the last two buckets."""
        summary = self.summary(-2, len(self.numbers))
        for each, value in zip(self, summary, strict=True):
            each[-2:] = array(each.typecode, [value])

    def summary(self, first: int, end: int) -> Summary:
        """The summary of these buckets."""
        buckets = zip(*[each[first:end] for each in self], strict=True)
        return merge_summaries([Summary(*bucket) for bucket in buckets])

    def merged(self, groups: Groups) -> Column:
        """The summaries of groups of buckets, as `merge_summaries` makes them.

        Whole columns are passed to the built-in functions: it takes a microsecond per group.
        """
        found, has_ranks = Column.of_empty(0), self.has_ranks
        for first, end in groups.runs:
            full = end - (end - first) % groups.width
            if groups.width == 1:
                for each, own in zip(found, self, strict=True):
                    each.extend(own[first:end])
            elif first < full:
                self._merge_full(found, first, full, groups.width, has_ranks=has_ranks)
            if full < end:
                found.append(self.summary(full, end))
        return found

    def _merge_full(
        self, found: Column, first: int, end: int, width: int, *, has_ranks: bool
    ) -> None:
        """Add the summaries of the groups of exactly `width` buckets."""

        def parts(values: array[Any]) -> list[array[Any]]:
            return [values[at:end:width] for at in range(first, first + width)]

        offset = len(found.numbers)
        numbers = [*map(sum, zip(*parts(self.numbers), strict=True))]
        found.numbers.extend(numbers)
        if self.numbers[first:end].count(self.numbers[first]) == end - first:
            sums = map(sum, zip(*parts(self.means), strict=True))
            found.means.extend([total / width for total in sums])
        else:
            totals = array("d", map(mul, self.means[first:end], self.numbers[first:end]))
            sums = map(sum, zip(*(totals[at::width] for at in range(width)), strict=True))
            found.means.extend(map(truediv, sums, [number or 1 for number in numbers]))
        found.mins.extend(map(min, *parts(self.mins)))
        found.maxs.extend(map(max, *parts(self.maxs)))
        bads = [*map(sum, zip(*parts(self.bads), strict=True))]
        found.bads.extend(bads)
        if has_ranks:
            found.lows.extend(map(min, *parts(self.lows)))
            highs = [*zip(*parts(self.highs), strict=True)]
            highest = [*map(max, highs)]
            places = map(tuple.index, highs, highest)
            found.highs.extend(highest)
            found.worsts.extend(map(getitem, zip(*parts(self.worsts), strict=True), places))
        else:
            for each, value in zip(found[5:], EMPTY[5:], strict=True):
                each.extend(array(each.typecode, [value]) * len(numbers))
        is_in_range = map(le, found.mins[offset:], found.means[offset:])
        is_in_range = map(and_, is_in_range, map(le, found.means[offset:], found.maxs[offset:]))
        for at, is_right in enumerate(is_in_range):
            # The sum of large numbers overflows, and rounding takes a mean out of the range.
            if bads[at] or (numbers[at] and not is_right):
                start = first + at * width
                summary = self.summary(start, start + width)
                for each, value in zip(found, summary, strict=True):
                    each[offset + at] = value

    def compressed(self, is_kept: Sequence[int]) -> Column:
        """The buckets for which `is_kept` is true."""
        return Column(*[array(each.typecode, compress(each, is_kept)) for each in self])


class Span(NamedTuple):
    """The rows of a bucket, or of several in a row: first and last id, step and time.

    `segment` counts the attempts and trainings, and how often the step went back within one;
    `tokens` is the number of tokens trained on up to the last row.
    """

    first_id: int
    last_id: int
    first_step: int
    step: int
    first_time: float
    time: float
    segment: int
    tokens: float


@dataclass
class Track:
    """The buckets of one event: the span of each, and a column for each signal.

    `decode` adds the summaries of rows of one layout, which may be damaged, to those found.
    """

    event: Event
    decode: Callable[[int, Event, list[bytes], Found], None]
    size: int = 1
    max_cells: int = MAX_CELLS
    spans: list[Span] = field(default_factory=list)
    columns: dict[str, Column] = field(default_factory=dict)
    open_rows: int = 0
    """Rows of the last bucket if it has not ended; the pending rows are added to it."""
    tokens: float = 0.0
    """Tokens of the run up to the last bucket."""
    _pending: list[StoredRow] = field(default_factory=list)

    def add(self, row: StoredRow, segment: int) -> None:
        """Add a row, which is newer than all others and of the same segment as those pending."""
        self._pending.append(row)
        if self.open_rows + len(self._pending) >= self.size:
            self.close_bucket(segment)

    def close_bucket(self, segment: int) -> None:
        """End the bucket of the pending rows."""
        self.show_pending(segment)
        self.open_rows = 0
        if len(self.spans) > self._max_buckets():
            self._merge_pairs()

    def show_pending(self, segment: int) -> None:
        """Add the pending rows to a bucket that has not ended."""
        rows, self._pending = self._pending, []
        if not rows:
            return
        found: Found = {}
        by_layout: dict[int, list[bytes]] = {}
        for row in rows:
            by_layout.setdefault(row.layout, []).append(row.numbers)
        for layout, blobs in by_layout.items():
            self.decode(layout, self.event, blobs, found)
        first, last = rows[0], rows[-1]
        summaries = {name: merge_summaries(each) for name, each in found.items()}
        self.tokens = self._count_tokens(summaries)
        self.spans.append(
            Span(
                first.id,
                last.id,
                first.first_step,
                last.step,
                first.first_time,
                last.time,
                segment,
                self.tokens,
            )
        )
        for name in [*summaries.keys() - self.columns.keys()][
            : max(0, MAX_SIGNALS - len(self.columns))
        ]:
            self.columns[name] = Column.of_empty(len(self.spans) - 1)
        for name, column in self.columns.items():
            column.append(summaries.get(name, EMPTY))
        if self.open_rows:
            self.spans[-2:] = [merge_spans(self.spans[-2:], 0, 2)]
            for column in self.columns.values():
                column.merge_last()
        self.open_rows += len(rows)

    def resume(self, step: int) -> None:
        """Training continues at that step: it has seen the tokens of those before."""
        earlier = (span.tokens for span in reversed(self.spans) if span.step < step)
        self.tokens = next(earlier, 0.0)

    def _count_tokens(self, summaries: Mapping[str, Summary]) -> float:
        """Tokens of the run up to the end of the pending rows; 0 if they are not counted."""
        seen, of_steps = summaries.get("tokens_seen"), summaries.get("tokens")
        if seen is not None and seen.number:
            return seen.max
        return self.tokens + (0.0 if of_steps is None else of_steps.mean * of_steps.number)

    def _max_buckets(self) -> int:
        fitting = self.max_cells // max(len(self.columns), 1)
        return max(MIN_BUCKETS, min(MAX_BUCKETS, fitting))

    def _merge_pairs(self) -> None:
        """Merge neighbours of one segment, and gather twice as many rows in each bucket."""
        self.size *= 2
        groups = self.group(range(len(self.spans)), -(-len(self.spans) // 2))
        if len(groups.ranges()) > MAX_UNMERGED_SHARE * len(self.spans):
            groups = Groups(((0, len(self.spans)),), 2)
        self.spans = [merge_spans(self.spans, *group) for group in groups.ranges()]
        self.columns = {name: column.merged(groups) for name, column in self.columns.items()}

    def group(self, buckets: Sequence[int], points: int) -> Groups:
        """The buckets of each of at most about `points` points: neighbours of one segment."""
        runs: list[tuple[int, int]] = []
        for at in buckets:
            if (
                runs
                and runs[-1][1] == at
                and self.spans[runs[-1][0]].segment == (self.spans[at].segment)
            ):
                runs[-1] = runs[-1][0], at + 1
            else:
                runs.append((at, at + 1))
        width = max(1, -(-len(buckets) // points))
        segments = [
            self.spans[first].segment
            for first, end in runs
            for _ in range(-(-(end - first) // width))
        ]
        return Groups(tuple(runs), width, segments)

    def points(self, signal: str, groups: Groups, xs: Sequence[float]) -> dict[str, Any]:
        """The points of a signal as `RunReader.series` returns them; `xs` are those of groups."""
        merged = self.columns[signal].merged(groups)
        segments: Sequence[int] = groups.segments
        has_ranks = self.columns[signal].has_ranks
        if not all(merged.numbers):
            # A point without a finite value is shown only if it has another one.
            is_shown = [*map(or_, map(bool, merged.numbers), merged.bads)]
            merged = merged.compressed(is_shown)
            xs, segments = [*compress(xs, is_shown)], [*compress(segments, is_shown)]
        numbers = merged.numbers
        return {
            "x": list(xs),
            "attempt": list(segments),
            "mean": _without_empty(merged.means, numbers),
            "min": _without_empty(merged.mins, numbers),
            "max": _without_empty(merged.maxs, numbers),
            "rank_min": _finite(merged.lows) if has_ranks else None,
            "rank_max": _finite(merged.highs) if has_ranks else None,
            "worst_rank": [None if rank == NO_RANK else rank for rank in merged.worsts]
            if has_ranks
            else None,
            "bad": [*compress(xs, merged.bads)],
            "is_raw": self.size == 1 and max(numbers, default=0) <= 1,
            "count": sum(numbers),
        }


class Groups(NamedTuple):
    """Buckets in groups of `width` neighbours; the last group of each run may be smaller."""

    runs: tuple[tuple[int, int], ...]
    """First and end of the buckets that follow each other in one segment."""
    width: int
    segments: Sequence[int] = ()
    """The segment of each group."""

    def ranges(self) -> list[tuple[int, int]]:
        """First and end of the buckets of each group."""
        return [
            (at, min(at + self.width, end))
            for first, end in self.runs
            for at in range(first, end, self.width)
        ]


def _without_empty(values: array[float], numbers: array[int]) -> list[float | None]:
    """The values, with None for those of no finite value."""
    if all(numbers):
        return [*values]
    return [value if number else None for value, number in zip(values, numbers, strict=True)]


def _finite(values: array[float]) -> list[float | None]:
    """The values, with None for those that are not finite."""
    if isfinite(sum(values)):
        return [*values]
    return [value if isfinite(value) else None for value in values]


def merge_spans(spans: Sequence[Span], first: int, end: int) -> Span:
    """The span of several buckets in a row."""
    one, last = spans[first], spans[end - 1]
    return one._replace(last_id=last.last_id, step=last.step, time=last.time, tokens=last.tokens)
