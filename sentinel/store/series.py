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
from math import fsum, inf, isfinite
from operator import and_, getitem, le, mul, or_, truediv
from typing import Any, NamedTuple

from sentinel.model.record import Event
from sentinel.store.charted_signals import LOW, VALUE, chart_name
from sentinel.store.record_rows import (
    FULL_SPREAD,
    RANGE_SPREADS,
    RANK_SPREADS,
    RowLayout,
    split_rank_format,
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

StoredRow = tuple[int, int, int, float, str, int, bytes, int, float]
"""Id, attempt, step, time, event, layout (negative for blocks), numbers, first step, first time."""

NO_RANK = -1


class Summary(NamedTuple):
    """One signal over some records: of `number` finite values mean, minimum and maximum.

    `low` and `high` are over all ranks, `worst` is the rank with the highest value; infinite and
    `NO_RANK` if there are none. `bad` counts values that are not finite; of a block at most one is
    known.
    """

    number: int
    mean: float
    min: float
    max: float
    low: float = inf
    high: float = -inf
    worst: int = NO_RANK
    bad: int = 0


_EMPTY = Summary(0, 0.0, inf, -inf)


def merge_summaries(summaries: Sequence[Summary]) -> Summary:
    """The summary of all records."""
    if len(summaries) == 1:
        return summaries[0]
    count = sum([each.number for each in summaries])
    high = max([each.high for each in summaries])
    worst = next((each.worst for each in summaries if each.high == high), NO_RANK)
    bad_ranks = [each.worst for each in summaries if each.bad and each.worst != NO_RANK]
    return Summary(
        count,
        _mean([each.mean for each in summaries], [each.number for each in summaries], count),
        min([each.min for each in summaries]),
        max([each.max for each in summaries]),
        min([each.low for each in summaries]),
        high,
        bad_ranks[0] if bad_ranks else worst,
        sum([each.bad for each in summaries]),
    )


def _mean(means: Sequence[float], counts: Sequence[int], total: int) -> float:
    if not total:
        return 0.0
    mean = sum([mean * count for mean, count in zip(means, counts, strict=True)]) / total
    if isfinite(mean):
        return mean
    return fsum([mean * (count / total) for mean, count in zip(means, counts, strict=True)])


def summarize(column: Sequence[float]) -> tuple[int, float, float, float, int]:
    """Number of finite values, their mean, minimum and maximum, and the number of others."""
    count = len(column)
    total = sum(column)
    if isfinite(total):
        if count == 1:
            return 1, total, total, total, 0
        low, high = min(column), max(column)
        return count, min(max(total / count, low), high), low, high, 0
    finite = [value for value in column if isfinite(value)]
    bad = count - len(finite)
    if not finite:
        return 0, 0.0, inf, -inf, bad
    count, low, high = len(finite), min(finite), max(finite)
    mean = fsum([value / count for value in finite])
    return count, min(max(mean, low), high), low, high, bad


Found = dict[str, list[Summary]]
Range = tuple[float, float, int]
"""Lowest and highest value of all ranks, and the rank with it."""


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
            count, mean, low_value, high_value, bad = summarize(columns[at])
            of_ranks = ranges.get(signal)
            if of_ranks is None:
                summary = Summary(count, mean, low_value, high_value, bad=bad)
            else:
                summary = Summary(count, mean, low_value, high_value, *of_ranks, bad)
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
                lowest, highest = summarize(columns[low])[2], summarize(columns[high])[3]
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
            low, high, worst = ranges.get(signal, (inf, -inf, NO_RANK))
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
        names = len(layout.names)
        self._signals = [
            (at, target[0], target[1])
            for at, name in enumerate(layout.names)
            if (target := chart_name(event, name)) is not None
            and (wanted is None or target[0] in wanted)
        ]
        self._numbers = struct.Struct(f"<{names}Q{4 * names}d")
        self._names = names

    def add(self, blobs: Sequence[bytes], found: Found) -> None:
        """Add the summary of these blocks to that of each signal. Raises ValueError."""
        ranges: dict[str, list[float]] = {}
        values: dict[str, list[Summary]] = {}
        for blob in blobs:
            try:
                numbers = self._numbers.unpack(blob)
            except struct.error as error:
                raise ValueError("a block of the history does not fit its layout") from error
            for at, signal, role in self._signals:
                count = numbers[at]
                mean, low, high, last = numbers[self._names + 4 * at :][:4]
                is_bad = not isfinite(last)
                if role == VALUE:
                    summary = Summary(count, mean, low, high) if count else _EMPTY
                    values.setdefault(signal, []).append(
                        summary._replace(bad=1) if is_bad else summary
                    )
                elif count:
                    of_ranks = ranges.setdefault(signal, [inf, -inf])
                    at_end = 0 if role == LOW else 1
                    of_ranks[at_end] = (min, max)[at_end](of_ranks[at_end], (low, high)[at_end])
        for signal, summaries in values.items():
            low, high = ranges.get(signal, (inf, -inf))
            merged = merge_summaries(summaries)
            if low <= high:
                merged = merged._replace(low=low, high=high)
            found.setdefault(signal, []).append(merged)


@dataclass(slots=True)
class Column:
    """One signal in all buckets of a track; `None`-like values are those of an empty summary."""

    counts: array[int] = field(default_factory=lambda: array("q"))
    means: array[float] = field(default_factory=lambda: array("d"))
    mins: array[float] = field(default_factory=lambda: array("d"))
    maxs: array[float] = field(default_factory=lambda: array("d"))
    lows: array[float] = field(default_factory=lambda: array("d"))
    highs: array[float] = field(default_factory=lambda: array("d"))
    worst: array[int] = field(default_factory=lambda: array("i"))
    bad: array[int] = field(default_factory=lambda: array("q"))
    has_ranks: bool = False

    def append(self, summary: Summary) -> None:
        """Add a bucket."""
        self.counts.append(summary.number)
        self.means.append(summary.mean)
        self.mins.append(summary.min)
        self.maxs.append(summary.max)
        self.lows.append(summary.low)
        self.highs.append(summary.high)
        self.worst.append(summary.worst)
        self.bad.append(summary.bad)
        self.has_ranks |= summary.worst != NO_RANK or summary.low <= summary.high

    def pad(self, buckets: int) -> None:
        """Add `buckets` empty buckets."""
        for each, value in zip(self._arrays(), _EMPTY, strict=True):
            each.extend(array(each.typecode, [value]) * buckets)

    def pop(self) -> None:
        """Remove the last bucket."""
        for each in self._arrays():
            each.pop()

    def summary(self, first: int, end: int) -> Summary:
        """The summary of these buckets."""
        if end - first == 1:
            return Summary(*[each[first] for each in self._arrays()])
        counts = self.counts[first:end]
        count = sum(counts)
        bad = sum(self.bad[first:end])
        high, worst = -inf, NO_RANK
        low = inf
        if self.has_ranks:
            highs, ranks = self.highs[first:end], self.worst[first:end]
            high, low = max(highs), min(self.lows[first:end])
            worst = ranks[highs.index(high)]
            if bad:
                flags = zip(self.bad[first:end], ranks, strict=True)
                worst = next((rank for flag, rank in flags if flag and rank != NO_RANK), worst)
        mean = _mean(self.means[first:end], counts, count)
        lowest, highest = min(self.mins[first:end]), max(self.maxs[first:end])
        if count:
            # Rounding must not take the mean out of the range.
            mean = min(max(mean, lowest), highest)
        return Summary(count, mean, lowest, highest, low, high, worst, bad)

    def merged(self, groups: Groups) -> Column:
        """The summaries of groups of buckets.

        Whole columns are passed to the built-in functions: it takes a microsecond per group.
        """
        found = Column()
        for first, end in groups.runs:
            full = end - (end - first) % groups.width
            self._merge_full(found, first, full, groups.width)
            if full < end:
                found.append(self.summary(full, end))
        found.has_ranks = self.has_ranks
        return found

    def _merge_full(self, found: Column, first: int, end: int, width: int) -> None:
        """Add the summaries of the groups of exactly `width` buckets."""
        if width == 1 or first == end:
            for each, own in zip(found._arrays(), self._arrays(), strict=True):
                each.extend(own[first:end])
            return

        def parts(values: array[Any]) -> list[array[Any]]:
            return [values[at:end:width] for at in range(first, first + width)]

        offset = len(found.counts)
        counts = [*map(sum, zip(*parts(self.counts), strict=True))]
        found.counts.extend(counts)
        if self.counts[first:end].count(self.counts[first]) == end - first:
            sums = map(sum, zip(*parts(self.means), strict=True))
            found.means.extend([total / width for total in sums])
        else:
            totals = array("d", map(mul, self.means[first:end], self.counts[first:end]))
            sums = map(sum, zip(*(totals[at::width] for at in range(width)), strict=True))
            found.means.extend(map(truediv, sums, [count or 1 for count in counts]))
        found.mins.extend(map(min, *parts(self.mins)))
        found.maxs.extend(map(max, *parts(self.maxs)))
        if self.has_ranks:
            found.lows.extend(map(min, *parts(self.lows)))
            highs = [*zip(*parts(self.highs), strict=True)]
            highest = [*map(max, highs)]
            places = map(tuple.index, highs, highest)
            ranks = zip(*parts(self.worst), strict=True)
            found.highs.extend(highest)
            found.worst.extend(map(getitem, ranks, places))
        else:
            found.lows.extend([inf] * len(counts))
            found.highs.extend([-inf] * len(counts))
            found.worst.extend([NO_RANK] * len(counts))
        bad = [*map(sum, zip(*parts(self.bad), strict=True))]
        found.bad.extend(bad)
        is_in_range = map(le, found.mins[offset:], found.means[offset:])
        is_in_range = map(and_, is_in_range, map(le, found.means[offset:], found.maxs[offset:]))
        for at, is_right in enumerate(is_in_range):
            # The sum of large numbers overflows, and rounding takes a mean out of the range.
            if bad[at] or (counts[at] and not is_right):
                start = first + at * width
                found.replace(offset + at, self.summary(start, start + width))

    def compressed(self, is_kept: Sequence[int]) -> Column:
        """The buckets for which `is_kept` is true."""
        kept = Column(has_ranks=self.has_ranks)
        for each, own in zip(kept._arrays(), self._arrays(), strict=True):
            each.extend(compress(own, is_kept))
        return kept

    def replace(self, at: int, summary: Summary) -> None:
        """Set the summary of one bucket."""
        for each, value in zip(self._arrays(), summary, strict=True):
            each[at] = value

    def _arrays(self) -> tuple[array[Any], ...]:
        return (
            self.counts, self.means, self.mins, self.maxs, self.lows, self.highs, self.worst,
            self.bad,
        )  # fmt: skip


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
    _pending: list[StoredRow] = field(default_factory=list)
    _open_rows: int = 0
    """Pending rows that the last bucket has; it is replaced when there are more."""
    tokens: float = 0.0
    """Tokens of the run up to the last bucket that has ended."""

    def add(self, row: StoredRow, segment: int) -> None:
        """Add a row, which is newer than all others and of the same segment as those pending."""
        self._pending.append(row)
        if len(self._pending) >= self.size:
            self.close_bucket(segment)

    def close_bucket(self, segment: int) -> None:
        """End the bucket of the pending rows."""
        if not self._pending:
            return
        self.show_pending(segment)
        self._pending, self._open_rows = [], 0
        self.tokens = self.spans[-1].tokens
        if len(self.spans) > self._max_buckets():
            self._merge_pairs()

    def show_pending(self, segment: int) -> None:
        """Make a bucket of the pending rows, in place of an earlier one of them."""
        rows = self._pending
        if len(rows) == self._open_rows:
            return
        if self._open_rows:
            self.spans.pop()
            for column in self.columns.values():
                column.pop()
        self._open_rows = len(rows)
        found: Found = {}
        by_layout: dict[int, list[bytes]] = {}
        for row in rows:
            by_layout.setdefault(row[5], []).append(row[6])
        for layout, blobs in by_layout.items():
            self.decode(layout, self.event, blobs, found)
        first, last = rows[0], rows[-1]
        summaries = {name: merge_summaries(each) for name, each in found.items()}
        tokens = self._count_tokens(summaries)
        self.spans.append(
            Span(first[0], last[0], first[7], last[2], first[8], last[3], segment, tokens)
        )
        for name in [*summaries.keys() - self.columns.keys()][
            : max(0, MAX_SIGNALS - len(self.columns))
        ]:
            self.columns[name] = column = Column()
            column.pad(len(self.spans) - 1)
        for name, column in self.columns.items():
            column.append(summaries.get(name, _EMPTY))

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
        column = self.columns[signal]
        merged = column.merged(groups)
        segments: Sequence[int] = groups.segments
        if not all(merged.counts):
            # A point without a finite value is shown only if it has another one.
            is_shown = [*map(or_, map(bool, merged.counts), merged.bad)]
            merged = merged.compressed(is_shown)
            xs, segments = [*compress(xs, is_shown)], [*compress(segments, is_shown)]
        counts = merged.counts
        has_ranks = column.has_ranks
        return {
            "x": list(xs),
            "attempt": list(segments),
            "mean": _without_empty(merged.means, counts),
            "min": _without_empty(merged.mins, counts),
            "max": _without_empty(merged.maxs, counts),
            "rank_min": _finite(merged.lows) if has_ranks else None,
            "rank_max": _finite(merged.highs) if has_ranks else None,
            "worst_rank": [None if rank == NO_RANK else rank for rank in merged.worst]
            if has_ranks
            else None,
            "bad": [*compress(xs, merged.bad)],
            "is_raw": self.size == 1 and max(counts, default=0) <= 1,
            "count": sum(counts),
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


def _without_empty(values: array[float], counts: array[int]) -> list[float | None]:
    """The values, with None for those of no finite value."""
    if all(counts):
        return [*values]
    return [value if count else None for value, count in zip(values, counts, strict=True)]


def _finite(values: array[float]) -> list[float | None]:
    """The values, with None for those that are not finite."""
    if isfinite(sum(values)):
        return [*values]
    return [value if isfinite(value) else None for value in values]


def merge_spans(spans: Sequence[Span], first: int, end: int) -> Span:
    """The span of several buckets in a row."""
    one, last = spans[first], spans[end - 1]
    return one._replace(last_id=last.last_id, step=last.step, time=last.time, tokens=last.tokens)
